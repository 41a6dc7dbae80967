"""The job of every rank of a generation."""

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen.layout import Layout
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.harness.cluster.job import SavedJob


class Job(SavedJob, frozen=True):
    """The dataset to be made and the files of it, by number, that are not there yet."""

    workload: str
    variant: str
    tiny: bool
    fill: str
    seed: int
    counts: dict[str, int]  # files of each split
    folder: str
    todo: tuple[int, ...]
    bytes: int  # of them, about
    file_bytes: int
    raw: bool
    ranks: int
    spec: str

    def layout(self) -> Layout:
        """The layout that the names mean."""
        return find_layout(registry.find(self.workload), self.variant, tiny=self.tiny, fill=self.fill)

    def spec_here(self) -> str:
        """The dataset's digest as this rank's code would make it."""
        return spec_digest(self.layout(), self.counts, self.seed)
