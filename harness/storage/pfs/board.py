"""The board: a mapped file with the counters of each emulated mount, which any process can read.

Sixteen int64 slots for the head, then sixteen for each node. A slot has one writer: the node's daemon, or, where a
node's ranks emulate by themselves, who holds the node's lock. Writers of DROP_ASKED take turns.
"""

import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import NamedTuple

from dlio_bench.errors import EnvironmentFailure

# Slots of a node's row.
PFS_BYTES, CACHE_BYTES, OPENS, REQUESTS, READY, DROP_ASKED, DROP_DONE, WRITTEN_BYTES, READ_NS, WRITE_NS = range(10)

SLOTS = 16  # a row is 128 bytes: no two nodes write to one cache line
_MAGIC = 0x444C494F_50465331  # "DLIOPFS1"
_PATIENCE = 30.0  # seconds for a daemon that looks every few milliseconds, on a machine that may be busy
_LOOK = 0.002  # seconds between two looks


class Counters(NamedTuple):
    """What one node's mount has delivered so far.

    pfs_bytes, cache_bytes: bytes that readers asked for and got, from the file system or the client cache; page
    rounding is not counted. opens: files opened. requests: started MiB fetched from the file system.
    """

    pfs_bytes: int
    cache_bytes: int
    opens: int
    requests: int


class Traffic(NamedTuple):
    """How one node's mount was used so far.

    read_bytes, written_bytes: that the file system carried. read_seconds, write_seconds: that the calls took, waiting
    for the links included, summed over all threads.
    """

    read_bytes: int
    written_bytes: int
    read_seconds: float
    write_seconds: float


class Board:
    """The counters of all nodes. `open` it in any process; `close` it, or use it in a `with`."""

    def __init__(self, path: Path, handle: int, mapped: mmap.mmap) -> None:
        self._path = path
        self._handle = handle
        self._map = mapped
        self._slots = memoryview(mapped).cast("q")
        self.nodes = self._slots[1]

    @staticmethod
    def create(path: Path, nodes: int) -> None:
        """Write a board of zeros."""
        head = [_MAGIC, nodes, *[0] * (SLOTS - 2)]
        path.write_bytes(b"".join(slot.to_bytes(8, "little") for slot in head) + bytes(8 * SLOTS * nodes))

    @classmethod
    def open(cls, path: Path) -> "Board":
        """Raises EnvironmentFailure when there is no board."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise EnvironmentFailure(
                f"The counters of the emulated file system, '{path}', cannot be opened ({error.strerror}). "
                "They are there only as long as its mounts."
            ) from None
        try:
            mapped = mmap.mmap(handle, 0)
        except (OSError, ValueError):
            mapped = None
        if mapped is None or len(mapped) < 8 * SLOTS or int.from_bytes(mapped[:8], "little") != _MAGIC:
            os.close(handle)
            raise EnvironmentFailure(
                f"'{path}' does not hold the counters of an emulated file system. Give the board of the running one."
            )
        return cls(path, handle, mapped)

    def close(self) -> None:
        """Give the file back; rows handed out before are no longer valid."""
        self._slots.release()
        self._map.close()
        os.close(self._handle)

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def row(self, node: int) -> memoryview:
        """The int64 slots of a node, which its daemon alone writes. Raises EnvironmentFailure when there is no such."""
        if not 0 <= node < self.nodes:
            raise EnvironmentFailure(f"The emulated file system has the nodes 0 to {self.nodes - 1}; {node} is none.")
        return self._slots[SLOTS * (node + 1) : SLOTS * (node + 2)]

    def counters(self, node: int) -> Counters:
        """What the node's mount has delivered so far. A reader finds all bytes counted that it was given before."""
        with self.row(node) as row:
            return Counters(row[PFS_BYTES], row[CACHE_BYTES], row[OPENS], row[REQUESTS])

    def traffic(self, node: int) -> Traffic:
        """How the node's mount was used so far."""
        with self.row(node) as row:
            return Traffic(row[PFS_BYTES], row[WRITTEN_BYTES], row[READ_NS] / 1e9, row[WRITE_NS] / 1e9)

    def drop_cache(self, node: int) -> None:
        """Have the node's client cache emptied, and wait until it is.

        Raises EnvironmentFailure when its daemon does not answer within 30 s.
        """
        with self.row(node) as row:
            fcntl.lockf(self._handle, fcntl.LOCK_EX)  # several ranks may ask at once
            try:
                row[DROP_ASKED] += 1
                request = row[DROP_ASKED]
            finally:
                fcntl.lockf(self._handle, fcntl.LOCK_UN)
            deadline = time.monotonic() + _PATIENCE
            while row[DROP_DONE] < request:
                if time.monotonic() > deadline:
                    raise EnvironmentFailure(
                        f"The emulated file system of node {node} did not empty its cache within {_PATIENCE:.0f} s: "
                        "its daemon has ended or is stuck. Run again; if it happens again, the machine is overloaded."
                    )
                time.sleep(_LOOK)
