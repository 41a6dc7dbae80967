"""What every rank is told: its job, one JSON file in the work folder that the command and its ranks share."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.reports.files import write_whole

JOB_FILE, MEASURED_FILE = "job.json", "measured.json"


@dataclass(frozen=True)
class SavedJob:
    """Base of the jobs, which are frozen dataclasses of numbers, texts, dicts of these, and tuples."""

    def save(self, folder: Path) -> None:
        """Write the job where its ranks look for it. EnvironmentFailure when it cannot be."""
        write_whole(folder / JOB_FILE, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the job of a work folder: equal to the one that was saved."""
        values: dict[str, Any] = json.loads((folder / JOB_FILE).read_text())
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def leave(folder: Path, comm: Comm, measured: Mapping[str, Any]) -> None:
    """Have rank 0 leave what was measured where the command that launched the ranks looks for it. OSError.

    All ranks call this, and none goes on before the document is there.
    """
    if comm.rank == 0:
        (folder / MEASURED_FILE).write_text(json.dumps(measured))
    comm.barrier()
