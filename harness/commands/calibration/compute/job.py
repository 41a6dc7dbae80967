"""The job of the process that measures step times."""

from dlio_bench.harness.cluster.job import SavedJob


class Job(SavedJob, frozen=True):
    """batches: ascending. steps: timed of each batch, 0: as many as a fair median needs. threads: 0 for all cores."""

    workload: str
    variant: str
    model: str
    tiny: bool
    batches: tuple[int, ...]
    steps: int
    threads: int

    @property
    def ranks(self) -> int:
        """A process of its own."""
        return 1
