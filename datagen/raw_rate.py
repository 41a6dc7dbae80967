"""The rate at which a folder takes files that cost nothing to make: random bytes from memory."""

import os
import time
from pathlib import Path

import numpy as np
from msgspec import Struct

LEAST_SECONDS, LEAST_BYTES = 2.0, 2_000_000_000  # of both halves together, whichever comes first
MOST_BYTES = 8_000_000_000  # a larger dataset is not written twice for the sake of its own rate
_BLOCK = 4 << 20


class Raw(Struct, frozen=True):
    """Bytes that were written raw, and the seconds it took; files being removed is not in them."""

    bytes: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Bytes a second; None when nothing was written."""
        return self.bytes / self.seconds if self.seconds else None

    def plus(self, more: "Raw") -> "Raw":
        """Both, one after the other."""
        return Raw(self.bytes + more.bytes, self.seconds + more.seconds)


class Goal(Struct, frozen=True):
    """When raw writing may stop: `bytes` are written, and `least_bytes` are or `least_seconds` have passed."""

    bytes: int
    least_bytes: int
    least_seconds: float


def raw_goal(total: int, processes: int) -> Goal:
    """The share of one of `processes` in one half of writing `total` bytes raw."""
    return Goal(min(total, MOST_BYTES) // (2 * processes), LEAST_BYTES // (2 * processes), LEAST_SECONDS / 2)


def write_raw(folder: Path, file_bytes: int, goal: Goal) -> Raw:
    """Write whole files of `file_bytes` until `goal` is met, each synced as a dataset's file is; then remove them.

    The bytes come from memory and are random, so that no file system can spare them. Files stay until the last one is
    written: pages and blocks that were just freed would be taken faster than new ones. OSError.
    """
    block = memoryview(np.random.default_rng(0).bytes(_BLOCK))
    paths: list[Path] = []
    started, done, seconds = time.monotonic(), 0, 0.0
    try:
        while done < goal.bytes or (done < goal.least_bytes and seconds < goal.least_seconds):
            paths.append(folder / f"raw-{os.uname().nodename}-{os.getpid()}-{len(paths)}")
            _write(paths[-1], block, file_bytes)
            done += file_bytes
            seconds = time.monotonic() - started
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    return Raw(done, seconds)


def raw_room(total: int) -> int:
    """Bytes that the raw files of one half of writing `total` bytes may take at a time, about."""
    return max(min(total, MOST_BYTES), LEAST_BYTES) // 2


def _write(path: Path, block: memoryview, size: int) -> None:
    with path.open("wb", buffering=0) as file:
        left = size
        while left:
            left -= file.write(block[: min(left, len(block))]) or 0
        os.fsync(file.fileno())
