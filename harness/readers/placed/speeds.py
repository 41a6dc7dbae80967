"""How fast each source of samples is: from a description of the machine, or measured in this run."""

import threading
from collections.abc import Mapping

PFS, REMOTE = "pfs", "remote"  # and the tiers of a node, by their names

# Without a description the parallel file system is taken for the slowest source, unless it delivers at the speed of
# memory. A rank cannot see whether a source is slow in itself or because many ranks read it now. But it can see that
# the data comes from a cache of its machine. A fraction of the speed of a tier in memory is enough, since that is
# measured alone and with a buffer in the CPU's cache. Waits for a core do not count.
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
        self._lock = threading.Lock()

    def begin(self, *, cached: bool) -> None:
        """Forget earlier reads, as caches may have been dropped since. cached: all files lie in the page cache, which
        is as good a proof as PROOF_BYTES.
        """
        with self._lock:
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
        if self._bytes < PROOF_BYTES or not self._memory:
            return False
        return self._bytes > AT_MEMORY_SPEED * self._memory * self._seconds
