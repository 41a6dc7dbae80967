"""What every rank of a measurement is told: a JSON file and an array in its work folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.harness.ceiling.plan import Files

JOB_FILE, SAMPLES_FILE, MEASURED_FILE = "job.json", "samples.npy", "measured.json"
COLD, WARM = "cold", "warm"
CACHE_MODES = (COLD, WARM)


@dataclass(frozen=True)
class Job:
    """The measurement of one number of ranks. `creates_in`: folder for empty files, None where nothing is written."""

    ranks: int
    threads: tuple[int, ...]
    trials: int
    cache: str
    seed: int  # of the random orders
    creates_in: str | None
    code_digest: str

    def save(self, files: Files, folder: Path) -> None:
        """Write job and files where the ranks look for them. OSError."""
        np.save(folder / SAMPLES_FILE, files.samples)
        content = {"job": asdict(self), "paths": files.paths, "sizes": files.sizes}
        (folder / JOB_FILE).write_text(json.dumps(content))


def load(folder: Path) -> tuple[Job, Files]:
    """Read what `Job.save` wrote."""
    content: dict[str, Any] = json.loads((folder / JOB_FILE).read_text())
    job = Job(**(content["job"] | {"threads": tuple(content["job"]["threads"])}))
    return job, Files(tuple(content["paths"]), tuple(content["sizes"]), np.load(folder / SAMPLES_FILE))
