"""The tiers of a node that keep samples: their sizes, and the bytes of a sample in them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.storage.capacity import default_disk, default_ram

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


def default_sizes(memory: int, staging: int, local: Path | None, nodes: int) -> dict[str, int]:
    """Bytes of each tier of a node, one of `nodes` on this machine, where nobody gives a size.

    memory: that the node may use, of which `staging` is for staging buffers. local: the folder on its own storage; no
    default for the temporary folder: it may lie in memory, or be small.
    """
    spare = max(0, memory - staging)
    return {
        RAM: min(spare, default_ram(memory, nodes)),
        DISK: 0 if local is None else default_disk(local, nodes),
    }
