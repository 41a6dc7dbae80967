"""Tiers that keep samples: one file each for RAM and node-local storage, shared by the ranks of a node.

The files have no names: the first rank of the node makes them, and sends the others handles. So the kernel frees them
with the last handle, even if ranks are killed. Their blocks are allocated when they are made: otherwise a full file
system or first touches of memory would fall into the timed part.
"""

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from msgspec import Struct

from dlio_bench.atomic_files import read_at, write_at
from dlio_bench.errors import EnvironmentFailure, remedy
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.links import Inbox, Where, send
from dlio_bench.harness.machine.memory import available_bytes
from dlio_bench.units import format_bytes

MEMORY_NAME = "dlio-bench-tier"  # of a tier in memory, in /proc/PID/fd

Place = Path | None  # the folder of a tier; None: memory


class TierFiles(Struct, frozen=True):
    """A node's tiers, open: a handle each (-1 for one of no bytes), and a byte of shared memory for each sample.

    places: where the tiers lie, for messages.
    """

    handles: tuple[int, ...]
    flags: mmap.mmap
    places: tuple[Place, ...]

    def read(self, tier: int, offset: int, out: memoryview) -> None:
        """Fill `out` from a tier. EnvironmentFailure naming its folder."""
        try:
            read_at(self.handles[tier], out, offset)
        except OSError as error:
            raise self._failure(tier, "read", error) from error

    def write(self, tier: int, offset: int, content: memoryview) -> None:
        """Put `content` into a tier. EnvironmentFailure naming its folder."""
        try:
            write_at(self.handles[tier], content, offset)
        except OSError as error:
            raise self._failure(tier, "written", error) from error

    def _failure(self, tier: int, verb: str, error: OSError) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"The tier in {_name(self.places[tier])} on {host_name()} cannot be {verb}: {error.strerror}. "
            f"{remedy(error)}; or leave the tier out with --tiers."
        )

    def close(self) -> None:
        """Give the tiers back; the memory and the blocks are free when all ranks have."""
        for handle in self.handles:
            if handle >= 0:
                os.close(handle)
        self.flags.close()


def make(places: Sequence[Place], sizes: Sequence[int], samples: int, *, reserve: bool = True) -> list[int]:
    """Handles of a node's files: a tier of sizes[i] bytes in places[i] each, if that is not 0, and last the flags.

    reserve: allocate their blocks now; else on the first write, which is not expected.
    EnvironmentFailure, with figures, where there is no room.
    """
    wanted = [(place, size, reserve) for place, size in zip(places, sizes, strict=True) if size]
    handles: list[int] = []
    try:
        for place, size, now in (*wanted, (None, max(1, samples), True)):
            handles.append(_file(place, size, reserve=now))
    except BaseException:
        close(handles)
        raise
    return handles


def share(handles: Sequence[int], others: Sequence[Where]) -> None:
    """Send what was made to the other ranks of the node. EnvironmentFailure."""
    with _sharing():
        for other in others:
            send(handles, other)


def take(inbox: Inbox, sizes: Sequence[int]) -> list[int]:
    """The handles that the first rank of the node has shared. EnvironmentFailure."""
    with _sharing():
        return inbox.take(sum(map(bool, sizes)) + 1)


def tier_files_of(handles: Sequence[int], places: Sequence[Place], sizes: Sequence[int]) -> TierFiles:
    """The tiers of these handles, which are theirs from now on."""
    *of_tiers, flags = handles
    waiting = iter(of_tiers)
    try:
        return TierFiles(tuple(next(waiting) if size else -1 for size in sizes), mmap.mmap(flags, 0), tuple(places))
    finally:
        os.close(flags)


def close(handles: Sequence[int]) -> None:
    """Give up files that are not `opened`."""
    for handle in handles:
        os.close(handle)


@contextmanager
def _sharing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(
            f"The ranks of a node cannot share a tier on {host_name()}: {error.strerror}. Start them in one "
            "container, or in containers with the network of the host. Or use --reader double-buffer, which keeps "
            "nothing."
        ) from error


def _file(place: Place, size: int, *, reserve: bool) -> int:
    """The handle of a new file of `size` bytes."""
    free = available_bytes() if place is None else free_bytes(place) or 0
    if place is None and reserve and size > free:  # the kernel would kill a process instead of refusing
        raise _no_room(place, size, free, os.strerror(errno.ENOMEM))
    handle = _open_tier(place)
    try:
        if reserve:
            os.posix_fallocate(handle, 0, size)
        else:
            os.ftruncate(handle, size)
    except OSError as error:
        os.close(handle)
        raise _no_room(place, size, free, error.strerror) from error
    return handle


def _no_room(place: Place, size: int, free: int, reason: str | None) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"A tier of {format_bytes(size)} cannot be made in {_name(place)} on {host_name()}: {reason} "
        f"({format_bytes(free)} are free). Ask for smaller --tiers, or free some there."
    )


def _open_tier(place: Place) -> int:
    try:
        if place is None:
            return os.memfd_create(MEMORY_NAME)
        with TemporaryFile(dir=place, buffering=0) as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise EnvironmentFailure(
            f"A tier cannot be made in {_name(place)} on {host_name()}: {error.strerror}. {remedy(error)}; or leave "
            "the tier out with --tiers."
        ) from error


def _name(place: Place) -> str:
    return "memory" if place is None else str(place)
