"""What a reader delivers of a sample: its stored fields, or what the application decodes from them."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.datagen.dataset import Dataset


class SampleView(Struct, frozen=True):
    """The fields `view` of a dataset's samples, one after the other; or the result of `decode`."""

    dataset: Dataset
    view: tuple[str, ...]
    decode: Decode | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that are read."""
        return self.view if self.decode is None else self.decode.fields

    def sizes(self, ids: Ids) -> Ids:
        """Bytes delivered of each sample, int64 [n]."""
        if self.decode is not None:
            return np.full(len(ids), self.decode.sample_bytes, dtype=np.int64)
        sizes: Ids = self.dataset.locate(ids, self.view)[3].sum(axis=1)
        return sizes

    def stored(self, ids: Ids) -> int:
        """Bytes that the samples' fields occupy in their files."""
        return int(self.dataset.locate(ids, self.fields)[2].sum())

    def useful(self, ids: Ids) -> int:
        """Bytes of the view, before decoding."""
        return int(self.dataset.locate(ids, self.view)[3].sum())


def stored_by_epoch(sample_view: SampleView, plan: Sequence[tuple[int, Ids]]) -> dict[int, int]:
    """Epoch -> stored bytes of the plan's samples: what a reader that reads each once asks of the file system."""
    epoch_bytes: dict[int, int] = {}
    for epoch, ids in plan:
        epoch_bytes[epoch] = epoch_bytes.get(epoch, 0) + sample_view.stored(ids)
    return epoch_bytes
