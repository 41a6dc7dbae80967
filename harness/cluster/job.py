"""What every rank is told: its job, one JSON file in the work folder that the command and its ranks share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from dlio_bench.reports.files import write_whole

JOB_FILE = "job.json"


@dataclass(frozen=True)
class SavedJob:
    """Base of the jobs, which are frozen dataclasses of numbers, texts, tuples, dicts, and dataclasses of these."""

    def save(self, folder: Path) -> None:
        """Write the job where its ranks look for it. EnvironmentFailure when it cannot be."""
        write_whole(folder / JOB_FILE, msgspec.json.encode(self))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the job of a work folder: equal to the one that was saved."""
        return msgspec.json.decode((folder / JOB_FILE).read_bytes(), type=cls)
