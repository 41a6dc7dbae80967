"""How fast each source of samples is: by a description of the machine, or as measured in this very run."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

PFS, REMOTE = "pfs", "remote"  # and the tiers of a node, by their names

# What must be seen of a source before it is believed to be fast. A few reads may come from some cache on the way; as
# long as nothing is proven, the file system is taken for the slowest source.
PROOF_BYTES, PROOF_READS = 32_000_000, 8
FORGET = 4 * PROOF_BYTES  # what was seen counts half when so much has come: a source may change its pace


# Two ranks are at work for what comes from one to the other, and a third time for what was kept: where the file system
# is nearly as fast, that is work taken from the trainers.
WORTH = 2.0


@dataclass
class _Seen:
    bytes: float = 0.0
    seconds: float = 0.0
    reads: int = 0


class Speeds:
    """Bytes a second that one thread gets from each source while all of them are at work. Safe from several threads.

    `known`: rates by source, taken as they are; what they leave out is measured.
    """

    def __init__(self, known: Mapping[str, float] | None = None) -> None:
        self._known = dict(known or {})
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def saw(self, source: str, size: int, seconds: float) -> None:
        """A thread has got `size` bytes from a source in so many seconds."""
        if source in self._known:
            return
        with self._lock:
            seen = self._seen.setdefault(source, _Seen())
            seen.bytes, seen.seconds, seen.reads = seen.bytes + size, seen.seconds + seconds, seen.reads + 1
            if seen.bytes > FORGET:
                seen.bytes, seen.seconds = seen.bytes / 2, seen.seconds / 2

    def of(self, source: str) -> float:
        """Bytes a second, 0 where nothing is known."""
        if source in self._known:
            return self._known[source]
        seen = self._seen.get(source)
        return seen.bytes / seen.seconds if seen is not None and seen.seconds > 0 else 0.0

    def file_system_beats(self, source: str) -> bool:
        """Whether the parallel file system is faster than `source`, as far as that is proven. Ties go to `source`.

        Another rank, as far as it was measured here, must be WORTH so many times as fast.
        """
        measured = not {PFS, source} <= self._known.keys()
        worth = WORTH if measured and source == REMOTE else 1.0
        if PFS not in self._known:
            seen = self._seen.get(PFS)
            if seen is None or seen.bytes < PROOF_BYTES or seen.reads < PROOF_READS:
                return False
        other = self.of(source)
        return other > 0 and worth * self.of(PFS) > other
