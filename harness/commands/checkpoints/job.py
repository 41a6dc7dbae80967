"""The job of every rank that writes and reads checkpoints."""

from dlio_bench.benchmarks.published_models.models import MODELS
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.commands.checkpoints.parts import Part, parts


class Job(SavedJob, frozen=True):
    """model: its name in MODELS. checkpoints: written, then read, in each of `trials`. place: folder for the sets."""

    model: str
    nodes: int
    ranks_per_node: int
    virtual: bool
    shards: int
    layout: str
    fraction: float
    checkpoints: int
    trials: int
    fsync: bool
    seed: int
    place: str

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def parts(self) -> list[Part]:
        """What each rank writes into which file."""
        return parts(MODELS[self.model], self.ranks, self.shards, self.layout, self.fraction)

    @property
    def shift(self) -> int:
        """How far from its writer the reader of a part is: a node where there are several, else a rank.

        argonne-lcf/dlio_benchmark @e1919d7, checkpointing/base_checkpointing.py:421-427, recovery_rank_shift.
        """
        if self.nodes > 1:
            return self.ranks_per_node
        return 1 if self.ranks > 1 else 0
