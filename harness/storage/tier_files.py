"""Tiers that keep samples: one file each for RAM and node-local storage, shared by the ranks of a node.

The files have names only until all ranks of the node have opened them. From then on the kernel frees them with the last
handle, even if ranks are killed. Their blocks are allocated when they are made: otherwise a full file system or first
touches of memory would fall into the timed part.
"""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from dlio_bench.atomic_files import read_at, write_at
from dlio_bench.errors import EnvironmentFailure, remedy
from dlio_bench.free_space import SHARED_MEMORY, free_bytes
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.units import format_bytes

FLAGS = "flags"


class TierFiles(Struct, frozen=True):
    """A node's tiers, open: a handle each (-1 for one of no bytes), and a byte of shared memory for each sample.

    folders: where the tiers lie, for messages; their files have no names any more.
    """

    handles: tuple[int, ...]
    flags: mmap.mmap
    folders: tuple[Path, ...]

    def read(self, tier: int, offset: int, out: memoryview) -> None:
        """Fill `out` from a tier. EnvironmentFailure naming its folder."""
        try:
            read_at(self.handles[tier], out, offset)
        except OSError as error:
            raise self._broken(tier, "read", error) from error

    def write(self, tier: int, offset: int, content: memoryview) -> None:
        """Put `content` into a tier. EnvironmentFailure naming its folder."""
        try:
            write_at(self.handles[tier], content, offset)
        except OSError as error:
            raise self._broken(tier, "written", error) from error

    def _broken(self, tier: int, verb: str, error: OSError) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"The tier in {self.folders[tier].parent} on {host_name()} cannot be {verb}: {error.strerror}. "
            f"{remedy(error)}; or leave the tier out with --tiers."
        )

    def close(self) -> None:
        """Give the tiers back; the memory and the blocks are free when all ranks have."""
        for handle in self.handles:
            if handle >= 0:
                os.close(handle)
        self.flags.close()


def make(folders: Sequence[Path], sizes: Sequence[int], samples: int, *, reserve: bool = True) -> None:
    """Make the files of a node: a tier of sizes[i] bytes in folders[i], and the flags beside the first.

    reserve: allocate their blocks now; else on the first write, which is not expected.
    EnvironmentFailure, with figures, where there is no room.
    """
    _allocate(folders[0] / FLAGS, max(1, samples))
    for number, (folder, size) in enumerate(zip(folders, sizes, strict=True)):
        if size:
            _allocate(folder / str(number), size, reserve=reserve)


def attach(folders: Sequence[Path], sizes: Sequence[int]) -> TierFiles:
    """Open what `make` has made; after that its files need no names. EnvironmentFailure."""
    handles: list[int] = []
    try:
        for number, (folder, size) in enumerate(zip(folders, sizes, strict=True)):
            handles.append(os.open(folder / str(number), os.O_RDWR | os.O_CLOEXEC) if size else -1)
        flags = os.open(folders[0] / FLAGS, os.O_RDWR | os.O_CLOEXEC)
        try:
            return TierFiles(tuple(handles), mmap.mmap(flags, 0), tuple(folders))
        finally:
            os.close(flags)
    except OSError as error:
        for handle in handles:
            if handle >= 0:
                os.close(handle)
        raise EnvironmentFailure(
            f"A tier in {folders[0]} on {host_name()} cannot be opened: {error.strerror}. All ranks of a node must see "
            f"the same {SHARED_MEMORY} and the same --local-tier."
        ) from error


def _allocate(path: Path, size: int, *, reserve: bool = True) -> None:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if reserve:
                os.posix_fallocate(handle, 0, size)
            else:
                os.ftruncate(handle, size)
        finally:
            os.close(handle)
    except OSError as error:
        free = free_bytes(path.parent) or 0
        raise EnvironmentFailure(
            f"A tier of {format_bytes(size)} cannot be made in {path.parent.parent} on {host_name()}: "
            f"{error.strerror} ({format_bytes(free)} are free). Ask for smaller --tiers, or "
            "free space there."
        ) from error
