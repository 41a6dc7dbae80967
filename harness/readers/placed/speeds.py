"""How fast each source of samples is: by a description of the machine, or as far as it shows in this very run."""

import threading
from collections.abc import Mapping

PFS, REMOTE = "pfs", "remote"  # and the tiers of a node, by their names

# Without a description the parallel file system is taken for the slowest source, as long as it does not deliver at the
# speed of memory: whether a source is slow in itself or because many read from it, now and not later, a rank cannot
# see; that something is a cache of this very machine, it can. A part of what a read of a tier in memory shows is
# enough: that one is measured alone and with a buffer in the processor's cache. Waits for a core are nobody's fault,
# and are not counted.
AT_MEMORY_SPEED = 1 / 16
PROOF_BYTES = 32_000_000  # to be seen before it is believed: a few reads may come from some cache on the way
FORGET = 2 * PROOF_BYTES  # what was seen counts half when so much has come: a source may change its pace


class Speeds:
    """Bytes a second that one thread gets from the parallel file system and from memory. Safe from several threads.

    `known`: rates by source, of a description; then these alone decide between the sources that they name.
    """

    def __init__(self, known: Mapping[str, float] | None = None) -> None:
        self._known = dict(known or {})
        self._bytes = self._seconds = 0.0
        self._memory = 0.0
        self._lock = threading.Lock()

    def begin(self, *, cached: bool) -> None:
        """Forget what was seen, as caches may have been dropped since. cached: all that is read lies in the page cache,
        which says the same as having seen it.
        """
        with self._lock:
            self._bytes, self._seconds = float(PROOF_BYTES if cached else 0), 0.0

    def saw_file_system(self, size: int, seconds: float, queued: float = 0.0) -> None:
        """A thread has got `size` bytes from the parallel file system in so many seconds, `queued` of them ready to
        run.
        """
        seconds = max(seconds - queued, 0.0)
        with self._lock:
            self._bytes, self._seconds = self._bytes + size, self._seconds + seconds
            if self._bytes > FORGET:
                self._bytes, self._seconds = self._bytes / 2, self._seconds / 2

    def saw_memory(self, size: int, seconds: float) -> None:
        """A tier in memory has given `size` bytes, about a sample, in so many seconds; the fastest counts."""
        self._memory = max(self._memory, size / max(seconds, 1e-9))

    def file_system_beats(self, source: str) -> bool:
        """Whether samples had better be read from the parallel file system than from `source`. Ties go to `source`."""
        if PFS in self._known and source in self._known:
            return self._known[PFS] > self._known[source]
        if self._bytes < PROOF_BYTES or not self._memory:
            return False
        return self._bytes > AT_MEMORY_SPEED * self._memory * self._seconds
