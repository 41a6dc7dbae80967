"""The job of the ranks: one JSON file in the work folder that the command and its ranks share."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.reports.files import write_whole

JOB_FILE, MEASURED_FILE = "job.json", "measured.json"


@dataclass(frozen=True)
class SavedJob:
    """Base of the jobs, which are frozen dataclasses of numbers, texts, tuples, dicts, and dataclasses of these."""

    def save(self, folder: Path) -> None:
        """Write the job into its work folder. EnvironmentFailure."""
        write_whole(folder / JOB_FILE, msgspec.json.encode(self))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the job of a work folder: equal to the one that was saved."""
        return msgspec.json.decode((folder / JOB_FILE).read_bytes(), type=cls)


def leave(folder: Path, comm: Comm, measured: Mapping[str, Any]) -> None:
    """Have rank 0 write what was measured into the work folder, for the launching command. OSError.

    All ranks call this; it returns when the document is written.
    """
    if comm.rank == 0:
        (folder / MEASURED_FILE).write_text(json.dumps(measured))
    comm.barrier()
