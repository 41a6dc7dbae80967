"""Which file system a path is on, and what that means for its cache."""

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from dlio_bench.errors import EnvironmentFailure, remedy

# statfs(2) f_type numbers, from linux/magic.h and the file systems' own sources.
_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
_BEYOND = {
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x6969: "nfs",
    0x65735546: "fuse",
    0x00C36400: "ceph",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x01021997: "9p",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x2FC12FC1: "zfs",
}
_MODULES = {"gpfs": "mmfs26"}  # of file systems whose kernel module has another name
_SHARED = {"lustre", "gpfs", "nfs", "ceph", "cifs", "smb2", "beegfs", "panfs"}
_SECRET = re.compile(r"secret|passw|token|credential|key", re.IGNORECASE)


class Mount(Struct, frozen=True):
    """One mounted file system: where, of which type, from what, with which options (secrets left out)."""

    point: str
    type: str
    source: str
    options: tuple[str, ...]


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts of a /proc/PID/mountinfo (proc_pid_mountinfo(5)), in its order: a later one hides an earlier."""
    mounts = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, rest = head.split(), tail.split()
        if len(fields) < 6 or len(rest) < 2:
            continue
        of_mount, of_filesystem = fields[5], rest[2] if len(rest) > 2 else ""
        words = dict.fromkeys(f"{of_mount},{of_filesystem}".split(","))
        options = [word for word in words if word and not _SECRET.search(word)]
        source = re.sub(r"//[^/@]*@", "//", _unescape(rest[1]))  # no user:password of a web or ssh mount
        mounts.append(Mount(_unescape(fields[4]), rest[0], source, tuple(options)))
    return mounts


def _unescape(word: str) -> str:
    """Blanks, tabs, line ends and backslashes are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def covering(mounts: list[Mount], path: str) -> Mount | None:
    """The mount that holds the absolute `path`: the longest mount point that is a leading part of it."""
    best = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def mount_of(path: Path) -> Mount | None:
    """The mount that holds `path` (links followed); None where the kernel does not say."""
    try:
        text = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    return covering(parse_mountinfo(text), str(path.resolve()))


def mount_document(path: Path) -> dict[str, Any] | None:
    """The mount that holds `path`, as plain JSON values."""
    mount = mount_of(path)
    return asdict(mount) | {"options": list(mount.options)} if mount else None


def first_line(path: Path) -> str:
    """The first line of one of the kernel's files; empty where it cannot be read, as speeds of links that are down."""
    try:
        return path.read_text(errors="replace").strip().partition("\n")[0]
    except OSError:
        return ""


def client_version(filesystem: str, root: Path = Path("/")) -> str | None:
    """The version of a file system's client that is no part of the kernel, such as Lustre's; None for others."""
    module = _MODULES.get(filesystem, filesystem)
    for place in (f"sys/fs/{filesystem}/version", f"proc/fs/{filesystem}/version", f"sys/module/{module}/version"):
        if told := first_line(root / place):
            return told.removeprefix(f"{filesystem}:").strip()
    return None


def mounts_below(folder: Path) -> list[Mount]:
    """The mounts inside `folder` (the caller has followed links). OSError where the kernel does not say."""
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    return [mount for mount in mounts if mount.point.startswith(f"{folder}/")]


def explain_os_error(error: OSError, host: str = "") -> str:
    """What failed where, and what to do, in sentences; of a full file system also which. host: as ' on node1'."""
    where = error.filename or (f"A file{host}" if host else None)
    if error.filename:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mount = mount_of(existing(Path(os.fsdecode(error.filename)))) if full else None
        where = f"{where}{host}" + (f" ({mount.type} at {mount.point})" if mount else "")
    return f"{f'{where}: ' if where else ''}{error.strerror or error}. {remedy(error)}."


def existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]


def filesystem_type(path: Path) -> int:
    """statfs(2)'s f_type of `path`. Raises EnvironmentFailure where the path cannot be reached."""
    buffer = (ctypes.c_long * 64)()  # struct statfs is 120 bytes and starts with f_type, a long on every 64-bit Linux
    if _libc.statfs(os.fsencode(path), buffer):
        reason = os.strerror(ctypes.get_errno())
        raise EnvironmentFailure(f"The file system of '{path}' cannot be determined: {reason}. Check the path.")
    return buffer[0] & 0xFFFFFFFF


def memory_backed(path: Path) -> bool:
    """Whether `path` is on tmpfs or ramfs: its bytes are always in memory, and reading them is never cold."""
    return filesystem_type(path) in _MEMORY


def cache_beyond(path: Path) -> str | None:
    """The file system's name where it keeps data in caches that mincore does not see; None for a plain local one.

    Lustre and GPFS have client caches of their own, network and FUSE file systems their servers', ZFS its ARC.
    """
    return _BEYOND.get(filesystem_type(path))


def network_filesystem(path: Path) -> str | None:
    """The file system's name where other machines may mount it too; None for others. EnvironmentFailure."""
    name = cache_beyond(path)
    return name if name in _SHARED else None
