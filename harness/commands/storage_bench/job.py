"""What every rank of a measurement gets: its job, and the files to read."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.commands.storage_bench.plan import Files

FILES_FILE, SAMPLES_FILE = "files.json", "samples.npy"


class Job(SavedJob, frozen=True):
    """The measurement of one number of ranks. `creates_in`: folder for empty files, None where nothing is written."""

    ranks: int
    threads: tuple[int, ...]
    trials: int
    cache: str
    seed: int  # of the random orders
    creates_in: str | None
    code_digest: str
    io: str = "buffered"


def save(job: Job, files: Files, folder: Path) -> None:
    """Write job and files where the ranks look for them. OSError, EnvironmentFailure."""
    job.save(folder)
    np.save(folder / SAMPLES_FILE, files.samples)
    (folder / FILES_FILE).write_text(json.dumps({"paths": files.paths, "sizes": files.sizes}))


def load(folder: Path) -> tuple[Job, Files]:
    """Read what `save` wrote."""
    files: dict[str, Any] = json.loads((folder / FILES_FILE).read_text())
    samples = np.load(folder / SAMPLES_FILE)
    return Job.load(folder), Files(tuple(files["paths"]), tuple(files["sizes"]), samples)
