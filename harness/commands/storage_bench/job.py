"""What every rank of a measurement gets: its job, and the files to read."""

from pathlib import Path

import numpy as np

from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.commands.storage_bench.plan import Files

SAMPLES_FILE = "samples.npy"


class Job(SavedJob, frozen=True):
    """The measurement of one number of ranks. `creates_in`: folder for empty files, None where nothing is written.

    paths, sizes: as of `Files`, whose samples lie beside the job.
    """

    ranks: int
    threads: tuple[int, ...]
    trials: int
    cache: str
    seed: int  # of the random orders
    creates_in: str | None
    io: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    def files(self, folder: Path) -> Files:
        """The files, with the samples that the command has saved in the job's folder. OSError."""
        return Files(self.paths, self.sizes, np.load(folder / SAMPLES_FILE))
