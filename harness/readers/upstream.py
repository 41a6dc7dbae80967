"""A workload's published pipeline as a reader."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dlio_bench.batches import Batch
from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.harness.readers.session import Planned, SampleView, Tally


class PublishedPipeline:
    """Delivers the dataset with the pipeline's own decoding, whatever the view.

    The caller that started the pipeline ends it, after any number of sessions.
    """

    def __init__(self, sample_view: SampleView, pipeline: Pipeline) -> None:
        self.sample_view = SampleView(sample_view.dataset, sample_view.view, pipeline.decode(sample_view.dataset))
        self._pipeline = pipeline

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        return self._pipeline.options

    @property
    def processes(self) -> tuple[int, ...]:
        """See Reader.processes."""
        return self._pipeline.processes

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.requested_bytes."""
        return self._pipeline.requested_bytes(self.sample_view.dataset, [(batch.epoch, batch.ids) for batch in plan])

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        batches = [(batch.epoch, batch.ids) for batch in plan]
        with self._pipeline.batches(self.sample_view.dataset, batches, tally.of) as delivered:
            yield delivered
