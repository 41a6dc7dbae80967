"""The tiers of a node that keep samples: their sizes, and the bytes of a sample in them."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.harness.readers.sample_view import SampleView

RAM, DISK = "ram", "disk"


class Tiers(Struct, frozen=True):
    """Bytes of a node's tiers, in memory and on node-local storage; 0: no such tier.

    rates: known bytes a second that one thread gets from a source ("pfs", "remote", "ram", "disk"). Other rates are
    measured.
    """

    ram: int = 0
    disk: int = 0
    rates: Mapping[str, float] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tiers, the faster first."""
        return tuple(name for name, size in ((RAM, self.ram), (DISK, self.disk)) if size)

    @property
    def capacities(self) -> tuple[int, ...]:
        """Their sizes. A policy that fills node-local storage uses the last tier, whichever it is."""
        return tuple(size for size in (self.ram, self.disk) if size)

    def sizes_of(self, sample_view: SampleView, samples: int | None = None) -> Ids:
        """Bytes of each sample as it is kept: the fields that are read, out of their container, not yet decoded.

        int64 [samples]: of the first `samples` ids, by default the training samples.
        """
        sizes: Ids = sample_view.dataset.locate(_ids(sample_view, samples), sample_view.fields)[3].sum(axis=1)
        return sizes

    def stored_of(self, sample_view: SampleView, samples: int | None = None) -> Ids:
        """Bytes of each sample as it lies in its file; as `sizes_of`."""
        stored: Ids = sample_view.dataset.locate(_ids(sample_view, samples), sample_view.fields)[2].sum(axis=1)
        return stored


def _ids(sample_view: SampleView, samples: int | None) -> Ids:
    return np.arange(sample_view.dataset.training_samples if samples is None else samples, dtype=np.int64)
