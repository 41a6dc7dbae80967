"""Copies of a dataset's files in a folder on node-local storage, which lives as long as a rank uses it.

The ranks of a node share the folder; each holds a shared flock(2) on it. The last rank to leave finds no other lock and
removes the folder. The kernel releases the locks of killed ranks: the next user of the tier removes their folders.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from dlio_bench import recorder
from dlio_bench.atomic_files import part_of, read_at, write_at
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import DAMAGED, Dataset
from dlio_bench.errors import DataError, EnvironmentFailure, remedy
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.ground.defaults import OF_FREE, OF_MEMORY
from dlio_bench.harness.machine.memory import available_bytes
from dlio_bench.harness.storage.direct import Alignment
from dlio_bench.units import format_bytes

NODES = "dlio-bench-tiers-"  # prefix of the folders that nodes have while a job runs
PREFIX = "dlio-bench-tier-"  # of the folders of copies in them
OPEN, COPY_READ, STAGE_READ, STAGE_WRITE = (CODE[name] for name in ("open", "copy read", "stage read", "stage write"))
CHUNK_BYTES = 8 << 20  # of a copy: the size from which parallel file systems read at full speed, and of an MPI message


class Hold(Struct, frozen=True):
    """A folder of copies in use by this process: `close` it to give it back."""

    folder: Path
    _lock: int

    def copy_of(self, file: int) -> Path:
        """Where the copy of file number `file` is, or will be when it is whole."""
        return self.folder / str(file)

    def close(self) -> None:
        """Let go of the folder; the last of its users removes it."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        _remove_if_unused(self.folder, self._lock)
        os.close(self._lock)


class TierRoom(Struct, frozen=True):
    """What a rank finds on its tier: `disk` names the file system (host and device number), sizes are in bytes."""

    disk: tuple[str, int]
    folder: str
    free: int
    block: int

    def occupied_bytes(self, size: int) -> int:
        """What a file of `size` takes: whole blocks."""
        return -(-size // self.block) * self.block


def make(tier: Path, digest: str) -> Hold:
    """A new, empty folder in `tier` for copies of the dataset `digest`; what dead jobs left there is removed first."""
    for left in tier.glob(f"{PREFIX}*"):
        _sweep(left)
    while True:
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{digest.removeprefix('sha256:')[:12]}-", dir=tier))
        except OSError as error:
            raise unusable(tier, error) from error
        try:
            held = hold(folder)
        except EnvironmentFailure:
            if folder.exists():
                raise
            continue  # another job removed it as a dead job's before it was locked
        if folder.exists():
            return held
        held.close()  # the same, a moment later


def hold(folder: Path) -> Hold:
    """Share a folder that a rank of this node has made. EnvironmentFailure when it cannot be reached."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
    except OSError as error:
        os.close(handle)
        raise unusable(folder, error) from error
    return Hold(folder, handle)


def room(held: Hold) -> TierRoom:
    """What is free on the tier now. EnvironmentFailure where the file system does not tell."""
    try:
        system, device = os.statvfs(held.folder), held.folder.stat().st_dev
    except OSError as error:
        raise unusable(held.folder, error) from error
    disk = (host_name(), device)
    return TierRoom(disk, str(held.folder.parent), system.f_bavail * system.f_frsize, system.f_frsize)


def copy(
    dataset: Dataset,
    file: int,
    held: Hold,
    buffer: memoryview,
    cost: Cost,
    stopped: Callable[[], bool],
    alignment: Alignment | None = None,
) -> None:
    """Copy one file through `buffer`; it has its name when it is whole. Once `stopped()`, the copy is given up.

    With `alignment` the file is read directly, and `buffer` is such memory of whole blocks. Its copy is not.
    The copy is not synced: it does not outlive the job. DataError when the file is missing or shorter than the
    manifest says, EnvironmentFailure when it cannot be read or its copy not be written.
    """
    source, target, size = dataset.name(file), held.copy_of(file), dataset.manifest.files[file].bytes
    track, part = recorder.current_track(), part_of(target)
    with _reading(dataset, file, cost, alignment) as read:
        writing = _open_part(part, held, size, new=True)
        try:
            done = 0
            while done < size and not stopped():
                started = time.perf_counter()
                left = size - done if alignment is None else alignment.round_up(size - done)
                count = min(read(buffer[:left], done), size - done)
                ended = time.perf_counter()
                cost.read_seconds += ended - started
                if track is not None:
                    track.add(STAGE_READ, started, ended, count, done, file)
                if count == 0 or (alignment is not None and done + count < size and count % alignment.block):
                    raise DataError(f"{source} ends at byte {done}, but has {size} by its manifest. {DAMAGED}")
                write(writing, held, buffer[:count], done, size)
                if track is not None:
                    track.add(STAGE_WRITE, ended, time.perf_counter(), count, done, file)
                done += count
        finally:
            os.close(writing)
    if done == size:
        part.rename(target)


@contextmanager
def _reading(
    dataset: Dataset, file: int, cost: Cost, alignment: Alignment | None
) -> Iterator[Callable[[memoryview, int], int]]:
    """What fills a buffer from an offset of a file, open as long as that; it returns, and counts, how many bytes."""
    if dataset.store is not None:
        store, name = objects.open_store(dataset.store), dataset.manifest.files[file].name

        def request(buffer: memoryview, offset: int) -> int:
            count = store.read(name, offset, [buffer], cost)
            cost.bytes_requested += count
            return count

        yield request
        return
    path, access, started = dataset.path(file), dataset.access, time.perf_counter()
    try:
        handle = access.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if alignment is None else os.O_DIRECT))
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing from its dataset. {DAMAGED}") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    ended = time.perf_counter()
    cost.read_seconds += ended - started
    if track := recorder.current_track():
        track.add(OPEN, started, ended, file=file)

    def read_piece(buffer: memoryview, offset: int) -> int:
        try:
            count = access.read(handle, [buffer], offset)
        except OSError as error:
            raise _unreadable(path, error) from error
        cost.bytes_requested += count
        return count

    try:
        yield read_piece
    finally:
        access.close(handle)


def write(handle: int, held: Hold, content: memoryview, offset: int, size: int) -> None:
    """Write part of a copy that will have `size` bytes. EnvironmentFailure naming the tier when there is no room."""
    try:
        write_at(handle, content, offset)
    except OSError as error:
        raise _unwritable(held, size, error) from error


def write_piece(held: Hold, file: int, content: memoryview, offset: int, size: int) -> None:
    """Write the piece at `offset` of a copy that arrives in order; the last piece gives it its name."""
    target = held.copy_of(file)
    part, started = part_of(target), time.perf_counter()
    handle = _open_part(part, held, size, new=offset == 0)
    try:
        write(handle, held, content, offset, size)
    finally:
        os.close(handle)
    if track := recorder.current_track():
        track.add(STAGE_WRITE, started, time.perf_counter(), len(content), offset, file)
    if offset + len(content) == size:
        part.rename(target)


def read_piece(held: Hold, file: int, buffer: memoryview, offset: int) -> None:
    """Fill `buffer` from a copy. EnvironmentFailure when it cannot be read as far as that."""
    path, started = held.copy_of(file), time.perf_counter()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            read_at(handle, buffer, offset)
        finally:
            os.close(handle)
    except OSError as error:
        raise unusable(path, error) from error
    if track := recorder.current_track():
        track.add(COPY_READ, started, time.perf_counter(), len(buffer), offset, file)


def pieces(size: int) -> list[tuple[int, int]]:
    """(offset, length) of the pieces in which a file of `size` bytes is handed on; an empty one for an empty file."""
    return [(at, min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES)] or [(0, 0)]


def _open_part(part: Path, held: Hold, size: int, *, new: bool) -> int:
    try:
        return os.open(part, os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)
    except OSError as error:
        raise _unwritable(held, size, error) from error


def _sweep(folder: Path) -> None:
    """Remove the folder of a job that is dead; one that is in use, or somebody else's, stays."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _remove_if_unused(folder, handle)
    finally:
        os.close(handle)


def _remove_if_unused(folder: Path, handle: int) -> None:
    """The exclusive lock succeeds only without other locks: one of the last ranks to leave gets it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)


def _unwritable(held: Hold, size: int, error: OSError) -> EnvironmentFailure:
    tier = held.folder.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFailure(
            f"The local tier {tier} on {host_name()} is full: the copy of a file of {format_bytes(size)} does not fit "
            f"({format_bytes(free_bytes(held.folder) or 0)} are free; {error.strerror}). Free space there, or give a "
            "larger folder with --local-tier."
        )
    return unusable(tier, error)


def _unreadable(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path} cannot be read on {host_name()}: {error.strerror}. {remedy(error)}.")


def unusable(path: Path, error: OSError) -> EnvironmentFailure:
    """What to raise where a folder on node-local storage fails."""
    return EnvironmentFailure(
        f"The local tier {path} on {host_name()} cannot be used: {error.strerror}. {remedy(error)}; or give another "
        "folder on node-local storage that this user can write with --local-tier."
    )


def default_ram(memory: int, nodes: int) -> int:
    """Bytes of the RAM tier of a node with `memory` bytes, one of `nodes` on this machine."""
    return int(min(OF_MEMORY * memory, OF_FREE * available_bytes() / nodes))


def default_disk(folder: Path, nodes: int) -> int:
    """Bytes of the tier in `folder` of a node, one of `nodes` on this machine."""
    return int(OF_FREE * (free_bytes(folder) or 0) / nodes)
