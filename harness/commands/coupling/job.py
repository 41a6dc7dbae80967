"""The job of every rank of a coupled workflow: the solver's ranks first, then one for each twin."""

from dlio_bench.benchmarks.grayscott.published import Settings
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.commands.coupling.options import WAYS

FILES, BP, SST = WAYS
# What the ways are compared with: each side without the other, and both at once without a coupling.
SOLVER_ALONE, TWINS_ALONE, BESIDE = REFERENCES = ("solver alone", "twins alone", "side by side")
APART = "one after the other"  # separate runs: the solver writes all its files, then the twins read them


class Job(SavedJob, frozen=True):
    """trials: measured ones, after `warmups`. queue: outputs that the solver may be ahead of the slowest twin.

    folders: where each virtual node finds the shared file system, the solver's node first. meeting: a folder outside
    of it, for the contact files of streams. board: counters of the emulated file system; empty where none is emulated.
    patience: seconds that a rank waits for another.
    """

    settings: Settings
    ways: tuple[str, ...]
    producers: int
    consumers: int
    train_steps: int
    queue: int
    trials: int
    warmups: int
    seed: int
    kernel: str
    folders: tuple[str, ...]
    meeting: str
    board: str
    patience: float

    @property
    def ranks(self) -> int:
        """Ranks of both sides."""
        return self.producers + self.consumers

    @property
    def cases(self) -> tuple[str, ...]:
        """What each trial measures."""
        return (*REFERENCES, *([APART] if FILES in self.ways else []), *self.ways)
