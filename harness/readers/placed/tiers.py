"""The tiers of a node that keep samples: their sizes, the bytes of a sample in them, and how fast each source is."""

import threading
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.harness.readers.session import SampleView

RAM, DISK = "ram", "disk"
PFS, REMOTE = "pfs", "remote"  # sources beyond the tiers of a node


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


# Without a description the parallel file system is taken for the slowest source, unless its files lie in the page
# cache. A rank cannot see whether a source is slow in itself or because many ranks read it now. But it can see that the
# data comes from a cache of its machine. Where the kernel does not tell, their speed does: a fraction of the speed of a
# tier in memory is enough, since that is measured alone and with a buffer in the CPU's cache. Waits for a core do not
# count.
AT_MEMORY_SPEED = 1 / 16
PROOF_BYTES = 32_000_000  # to be read before a decision: a few reads may come from some cache on the way
FORGET = 2 * PROOF_BYTES  # after so many bytes earlier reads count half: the speed of a source may change


class Speeds:
    """Bytes a second that one thread gets from the parallel file system and from memory. Safe from several threads.

    `known`: rates by source, from a description. They alone decide between the sources that they name.
    """

    def __init__(self, known: Mapping[str, float] | None = None) -> None:
        self._known = dict(known or {})
        self._bytes = self._seconds = 0.0
        self._memory = 0.0
        self._by_rate = True
        self._lock = threading.Lock()

    def begin(self, *, cached: bool | None) -> None:
        """Forget earlier reads, as caches may have been dropped since. cached: whether all files lie in the page
        cache. True is as good a proof as PROOF_BYTES. False: a tier is faster, however fast the files are read. None:
        the kernel does not say, and the measured rate decides.
        """
        with self._lock:
            self._by_rate = cached is not False
            self._bytes, self._seconds = float(PROOF_BYTES if cached else 0), 0.0

    def saw_file_system(self, size: int, seconds: float, queued: float = 0.0) -> None:
        """A thread has read `size` bytes from the parallel file system in `seconds`; it waited `queued` for a core."""
        seconds = max(seconds - queued, 0.0)
        with self._lock:
            self._bytes, self._seconds = self._bytes + size, self._seconds + seconds
            if self._bytes > FORGET:
                self._bytes, self._seconds = self._bytes / 2, self._seconds / 2

    def saw_memory(self, size: int, seconds: float) -> None:
        """A tier in memory has delivered `size` bytes, about a sample, in `seconds`. The fastest time counts."""
        self._memory = max(self._memory, size / max(seconds, 1e-9))

    def file_system_beats(self, source: str) -> bool:
        """Whether the parallel file system is faster than `source`. Ties go to `source`."""
        if PFS in self._known and source in self._known:
            return self._known[PFS] > self._known[source]
        if not self._by_rate or self._bytes < PROOF_BYTES or not self._memory:
            return False
        return self._bytes > AT_MEMORY_SPEED * self._memory * self._seconds
