"""What every rank is told: its job, one JSON file in the work folder that the command and its ranks share."""

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
        """Write the job where its ranks look for it. EnvironmentFailure when it cannot be."""
        write_whole(folder / JOB_FILE, msgspec.json.encode(self))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the job of a work folder: equal to the one that was saved."""
        return msgspec.json.decode((folder / JOB_FILE).read_bytes(), type=cls)


def leave(folder: Path, comm: Comm, measured: Mapping[str, Any]) -> None:
    """Have rank 0 leave what was measured where the command that launched the ranks looks for it. OSError.

    All ranks call this, and none goes on before the document is there.
    """
    if comm.rank == 0:
        (folder / MEASURED_FILE).write_text(json.dumps(measured))
    comm.barrier()
