"""Delivery on demand: the trainer's own thread reads a batch when it is asked for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dlio_bench.batches import Batch, Block
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import OpenFetcher, PlainReader, Planned, SampleView, Tally, touch_buffer


class OnDemand(PlainReader):
    """One buffer of one batch, filled in the caller's thread."""

    def __init__(self, sample_view: SampleView, open_extents: OpenFetcher, resources: Resources) -> None:
        self.sample_view = sample_view
        self._open_extents = open_extents
        self._buffer = touch_buffer(resources.batch_bytes)
        self.options: dict[str, int] = {"threads": 0, "slots": 1}

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        extents = self._open_extents()
        chunks = extents.prepare([batch.ids for batch in plan])
        firsts = np.searchsorted(chunks.batches, np.arange(len(plan) + 1)).tolist()

        def batches() -> Iterator[Batch]:
            memory = memoryview(self._buffer)
            for step, batch in enumerate(plan):
                cost = tally.of(batch.epoch)
                extents.fetch(chunks, range(firsts[step], firsts[step + 1]), memory, cost)
                yield Batch(batch.ids, (Block(self._buffer[: batch.bytes], batch.starts),))

        try:
            yield batches()
        finally:
            extents.close()
