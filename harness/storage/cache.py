"""The page cache without root: drop files from it, and count their pages in it.

Dropping is posix_fadvise(POSIX_FADV_DONTNEED), which reads nothing and takes some 3 ms a GiB; looking is mincore(2) on
a mapping whose pages are never touched. A measurement that says "cold" does both: drop, and then look.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from msgspec import Struct

from dlio_bench.datagen.dataset import KERNEL, Access
from dlio_bench.errors import DataError, EnvironmentFailure, remedy
from dlio_bench.harness.machine import mounts

MOST_RESIDENT = 0.01  # of a dataset, for a trial to count as cold
LEAST_WARM = 0.95  # resident, for a trial to count as warm: kernels take idle pages back within a minute

_PAGE = os.sysconf("SC_PAGESIZE")
_CHUNK = 1 << 30  # bytes mapped at a time: a vector of 256 KiB with 4 KiB pages
_CAP_FOWNER = 3  # linux/capability.h
_PROT_READ, _MAP_SHARED = 1, 1
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class Residency(Struct, frozen=True):
    """How much of some files is in the page cache.

    bytes, resident_bytes: over all files, as the kernel reports. attestable: whether that report proves anything (see
    `may_attest`; a memory-backed file and one on a file system with further caches prove nothing about coldness).
    memory_backed: any of them is on tmpfs or ramfs, and so can never be cold. note: the reason when not attestable.
    """

    bytes: int
    resident_bytes: int
    attestable: bool
    memory_backed: bool = False
    note: str | None = None

    @property
    def share(self) -> float:
        """Resident part, 0 to 1; 0 for no bytes."""
        return self.resident_bytes / self.bytes if self.bytes else 0.0


@contextmanager
def _open_file(path: Path, access: Access = KERNEL) -> Iterator[int]:
    """A descriptor for reading. Raises DataError for a file that is gone, EnvironmentFailure; both with the fix."""
    try:
        fd = access.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _missing_error(path) from None
    except OSError as error:
        raise EnvironmentFailure(
            f"'{path}' cannot be opened for reading ({error.strerror}), so its page cache cannot be controlled. "
            f"{remedy(error)}."
        ) from None
    try:
        yield fd
    finally:
        access.close(fd)


def _missing_error(path: Path) -> DataError:
    return DataError(f"'{path}' is not there any more. Restore it, or make it again, and repeat the command.")


def drop(paths: Sequence[Path]) -> None:
    """Ask the kernel to forget the files' pages; `residency` tells whether it did.

    Dirty pages are written first (they would stay otherwise), for files that this user could have written. Does nothing
    on tmpfs and ramfs, whose pages are the data. Raises DataError for a file that is gone, EnvironmentFailure for one
    that cannot be opened.
    """
    for path in paths:
        with _open_file(path) as fd:
            if os.access(path, os.W_OK, effective_ids=True):
                with suppress(OSError):  # a file system without it (EINVAL, EROFS): nothing of ours is dirty there
                    os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def fill(paths: Sequence[Path], access: Access = KERNEL) -> None:
    """Read files once, so that they lie in the cache. DataError for a file that is gone, EnvironmentFailure."""
    buffer = memoryview(bytearray(8 << 20))
    for path in paths:
        with _open_file(path, access) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            try:
                done = 0
                while count := access.read(fd, [buffer], done):
                    done += count
            except OSError as error:
                raise EnvironmentFailure(f"'{path}' cannot be read: {error.strerror}. {remedy(error)}.") from error


def residency(paths: Sequence[Path]) -> Residency:
    """How much of the files' bytes the page cache holds now. Touches no page.

    Raises DataError for a file that is gone, EnvironmentFailure for one that cannot be opened.
    """
    total = resident = 0
    hidden: list[Path] = []
    devices: dict[int, tuple[bool, str | None]] = {}  # st_dev -> memory-backed, name of a file system with more caches
    for path in paths:
        with _open_file(path) as fd:
            status = os.fstat(fd)
            if status.st_dev not in devices:
                devices[status.st_dev] = (mounts.memory_backed(path), mounts.cache_beyond(path))
            total += status.st_size
            resident += _resident_bytes(fd, status.st_size, path)
        if not may_attest(path):
            hidden.append(path)
    in_memory = any(memory for memory, _ in devices.values())
    notes = [
        f"{name} keeps data in caches beyond the page cache, which cannot be seen"
        for name in sorted({name for _, name in devices.values() if name})
    ]
    if in_memory:
        notes.append("data on tmpfs or ramfs are always in memory")
    if hidden:
        notes.append(
            f"the kernel tells nothing of files that this user neither owns nor may write, such as '{hidden[0].name}'"
        )
    return Residency(total, resident, not notes, in_memory, "; ".join(notes) or None)


def direct_residency(paths: Sequence[Path]) -> Residency:
    """What direct reads (O_DIRECT) find of the files in the page cache: nothing, whatever it holds.

    Raises DataError for a file that is gone, EnvironmentFailure for one that cannot be opened.
    """
    total, beyond = 0, set[str | None]()
    for path in paths:
        with _open_file(path) as fd:
            total += os.fstat(fd).st_size
        beyond.add(mounts.cache_beyond(path))
    notes = [f"{name} keeps data in caches beyond the page cache, which cannot be seen" for name in beyond if name]
    return Residency(total, 0, not notes, note="; ".join(sorted(notes)) or None)


def _resident_bytes(fd: int, size: int, path: Path) -> int:
    """Bytes of the file's pages that are in the cache; the last page counts as far as the file goes."""
    resident = 0
    vector = np.empty(-(-min(size, _CHUNK) // _PAGE), dtype=np.uint8)  # one byte a page, its lowest bit is the answer
    for start in range(0, size, _CHUNK):
        length = min(_CHUNK, size - start)
        pages = -(-length // _PAGE)
        address = _libc.mmap(None, length, _PROT_READ, _MAP_SHARED, fd, start)
        if address == _MAP_FAILED:
            raise _invisible_error(path, "mapped")
        try:
            if _libc.mincore(address, length, vector.ctypes.data):
                raise _invisible_error(path, "looked up in the page cache")
        finally:
            _libc.munmap(address, length)
        present = vector[:pages] & 1
        resident += int(present.sum()) * _PAGE
        if present[-1]:
            resident -= pages * _PAGE - length
    return resident


def _invisible_error(path: Path, what: str) -> EnvironmentFailure:
    reason = os.strerror(ctypes.get_errno())
    return EnvironmentFailure(
        f"'{path}' cannot be {what} ({reason}), so whether it is cached cannot be known. Keep it on a file "
        "system whose files can be mapped, such as ext4, xfs or Lustre, or measure without asking for a cold cache."
    )


def may_attest(path: Path) -> bool:
    """Whether mincore tells this user the truth about `path`.

    Since Linux 5.2 (mm/mincore.c, can_do_mincore) it reports every page as resident unless the caller owns the inode,
    holds CAP_FOWNER, or may write the file. Raises DataError for a file that is gone, EnvironmentFailure.
    """
    try:
        owner = path.stat().st_uid
    except FileNotFoundError:
        raise _missing_error(path) from None
    except OSError as error:
        raise EnvironmentFailure(f"'{path}' cannot be looked at ({error.strerror}). {remedy(error)}.") from None
    return owner == os.geteuid() or os.access(path, os.W_OK, effective_ids=True) or _holds_fowner()


def _holds_fowner() -> bool:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(mask, 16) >> _CAP_FOWNER & 1)


FEWEST_TICKS = 50  # of all processors together: half a second of one, below which a share is noise


class HostCpu(Struct, frozen=True):
    """Jiffies of all processors since boot; take two and subtract. total = busy + iowait + idle + steal, where steal
    went to other virtual machines: not at this machine's disposal, and none of its work.
    """

    busy: int
    iowait: int
    total: int


class CpuShares(Struct, frozen=True):
    """What a machine's processors did in some time, shares 0 to 1."""

    busy: float
    iowait: float


def parse_io(text: str) -> int | None:
    """read_bytes of a /proc/PID/io (proc_pid_io(5)): bytes this process caused to be fetched from storage."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "read_bytes":
            return int(value)
    return None


def parse_stat(text: str) -> HostCpu:
    """The first line of a /proc/stat (proc_stat(5)): user nice system idle iowait irq softirq steal guest guest_nice.

    guest times are part of user and nice already and are not added again. Raises ValueError for another text.
    """
    words = text.split("\n", 1)[0].split()
    if not words or words[0] != "cpu":
        raise ValueError(f"not a /proc/stat: it starts with '{text[:40]}'")
    user, nice, system, idle, iowait, irq, softirq, steal = ([int(word) for word in words[1:9]] + [0] * 8)[:8]
    busy = user + nice + system + irq + softirq
    return HostCpu(busy, iowait, busy + iowait + idle + steal)


def device_bytes(children: Sequence[int] = ()) -> int | None:
    """Bytes that this process (all its threads) and these live children have had read from devices so far.

    None where the kernel hides it. Page-cache hits and tmpfs count nothing; read-ahead counts for its cause.
    """
    try:
        counts = [parse_io(Path(f"/proc/{process}/io").read_text()) for process in ("self", *children)]
    except OSError:
        return None
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def host_cpu() -> HostCpu | None:
    """The whole machine's processor time so far; None where the kernel hides it."""
    try:
        return parse_stat(Path("/proc/stat").read_text())
    except (OSError, ValueError):
        return None


def cpu_shares(spans: Sequence[tuple[HostCpu | None, HostCpu | None]]) -> CpuShares | None:
    """What the whole machine's processors did in some (before, after) spans together.

    None where the kernel hides it, and for spans too short for the kernel's clock ticks.
    """
    busy = iowait = total = 0
    for before, after in spans:
        if before is None or after is None:
            return None
        busy += after.busy - before.busy
        iowait += after.iowait - before.iowait
        total += after.total - before.total
    return CpuShares(busy / total, iowait / total) if total >= FEWEST_TICKS else None
