"""The FUSE side: a mount that shows a source folder and has every open, read and write charged by a `Node`.

The only file that knows mfusepy (pure Python over libfuse 3), imported when a mount is served.

Direct I/O: the kernel keeps no page of the files, so that each read comes here, in requests of up to 1 MiB. What
follows from it: files can be mapped with MAP_PRIVATE only (MAP_SHARED gives ENODEV), and what is read through such a
mapping is kept by the kernel and counted once only. Links in the source are followed and shown as what they lead to, so
that no path leaves the mount. A mount is read-only, and its names and attributes are kept by the kernel for a minute:
the source is not to be changed while mounted. Those of a writable mount are asked for each time.
"""

import ctypes
import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlio_bench.harness.storage.pfs.node import Node, SourceFile

LIBRARIES = ("libfuse3.so.3", "libfuse3.so.4")  # libfuse 3.0 to 3.16, and from 3.17 on
NAME = "dlio-bench-pfs"  # the mount's source as `mount` shows it

_KEPT_SECONDS = 60.0
_THREADS = 64  # requests of one node that may wait at once; libfuse's own default of 10 would be a hidden limit
_STAT = ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize")
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_STATVFS = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize", "f_namemax")


def library() -> str | None:
    """The libfuse 3 that can be loaded here; None when there is none."""
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


class _Operations:
    """What libfuse asks for, in mfusepy's form. A missing operation is one that the kernel stops asking for."""

    use_ns = True  # times are ns
    flag_nopath = flag_nullpath_ok = True  # what has a handle comes without its path, whose making takes a lock

    def __init__(self, source: Path, node: Node, ready: "memoryview") -> None:
        self._source = str(source)
        self._node = node
        self._ready = ready
        self._open: dict[int, SourceFile] = {}
        self._caller: Any = None
        self._low_handle = os.open(os.devnull, os.O_RDONLY)  # lower than those of the mount, see `_close_last`

    kept_seconds = _KEPT_SECONDS
    shown_mode = ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)

    def init_with_config(self, _connection: Any, config: Any) -> None:
        config.use_ino = 1
        config.direct_io = 1
        config.entry_timeout = config.attr_timeout = config.negative_timeout = self.kept_seconds
        _close_last(self._low_handle)
        self._ready[0] = os.getpid()

    def getattr(self, path: str | None, handle: int | None = None) -> dict[str, int]:
        status = os.fstat(handle) if path is None and handle is not None else os.stat(f"{self._source}{path}")  # noqa: PTH116
        values = {name: getattr(status, name) for name in _STAT} | {
            name: getattr(status, f"{name}_ns") for name in _TIMES
        }
        values["st_mode"] &= self.shown_mode
        return values

    def opendir(self, path: str) -> int:
        return os.open(f"{self._source}{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def readdir(self, _path: str | None, handle: int) -> list[tuple[str, dict[str, int], int]]:
        # An entry without an inode number is not shown: with use_ino the numbers are ours to give.
        entries = [(".", _entry(os.fstat(handle).st_ino, True), 0), ("..", _entry(1, True), 0)]
        with os.scandir(handle) as children:
            return entries + [(child.name, _entry(child.inode(), child.is_dir()), 0) for child in children]

    def releasedir(self, _path: str | None, handle: int) -> int:
        os.close(handle)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(f"{self._source}{path}")
        return {name: getattr(status, name) for name in _STATVFS}

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        file = self._node.open(f"{self._source}{path}", self._caller())
        self._open[file.fd] = file
        return file.fd

    def read(self, handle: int, address: int, size: int, offset: int) -> int:
        out = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        return self._node.read(self._open[handle], offset, [out], self._caller())

    def release(self, _path: str | None, handle: int) -> int:
        del self._open[handle]
        os.close(handle)
        return 0


class _Writing(_Operations):
    """As `_Operations`; files are made, written, renamed and removed too. Bytes are charged, names are not."""

    flag_nopath = flag_nullpath_ok = False  # mfusepy gives truncate no handle
    kept_seconds = 0.0
    shown_mode = ~0

    def open(self, path: str, flags: int) -> int:
        return self._open_file(path, flags & (os.O_ACCMODE | os.O_TRUNC))

    def create(self, path: str, mode: int) -> int:
        return self._open_file(path, os.O_RDWR | os.O_CREAT, mode)

    def _open_file(self, path: str, flags: int, mode: int = 0o666) -> int:
        file = self._node.open(f"{self._source}{path}", self._caller(), flags, mode, grows=True)
        self._open[file.fd] = file
        return file.fd

    def write(self, _path: str | None, content: bytes, offset: int, handle: int) -> int:
        return self._node.write(self._open[handle], offset, memoryview(content), self._caller())

    def truncate(self, path: str, length: int) -> int:
        os.truncate(f"{self._source}{path}", length)
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(f"{self._source}{old}", f"{self._source}{new}")  # noqa: PTH104 - these are strings of FUSE
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(f"{self._source}{path}")  # noqa: PTH108 - as above
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(f"{self._source}{path}", mode)  # noqa: PTH102 - as above
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(f"{self._source}{path}")  # noqa: PTH106 - as above
        return 0

    def fsync(self, _path: str | None, _data_only: int, _handle: int) -> int:
        return 0  # the time that data take is charged when they are written


def _close_last(handle: int) -> None:
    """Move the socket of libfuse's helper to `handle`, to be closed behind the mount when this process is killed.

    The helper unmounts when the socket is closed, but only a mount that is dead by then (fusermount.c,
    should_auto_unmount). The kernel closes what a killed process has open from its highest handle to its lowest, and
    libfuse's socket has a higher one than the mount: one mount in seven stayed.
    """
    for other in (int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the listing's own has gone
            if other > handle and stat.S_ISSOCK(os.fstat(other).st_mode):
                os.dup2(other, handle, inheritable=False)
                os.close(other)


def _entry(inode: int, folder: bool) -> dict[str, int]:
    return {"st_ino": inode, "st_mode": stat.S_IFDIR if folder else stat.S_IFREG}


def serve(source: Path, mount: Path, node: Node, ready: "memoryview", *, writable: bool = False) -> None:
    """Mount and answer until the mount is taken away or SIGTERM, SIGINT or SIGHUP comes; unmounts itself.

    writable: whether files can be written, and change while they are open.

    `ready[0]` becomes the process id when the mount answers. When this process is killed, a process of libfuse that
    waits for that takes the mount away (auto_unmount). Raises RuntimeError when it cannot be mounted; libfuse has said
    why on stderr.
    """
    os.environ.setdefault("FUSE_LIBRARY_PATH", library() or LIBRARIES[0])  # or mfusepy would prefer a libfuse 2
    import mfusepy

    class Direct(mfusepy.FUSE):  # type: ignore[misc] # ships no types
        """mfusepy's binding, but for reads: into libfuse's own buffer, without a copy through Python bytes."""

        def read(self, _path: bytes | None, buffer: Any, size: int, offset: int, info: Any) -> int:
            count: int = self.operations.read(info.contents.fh, ctypes.addressof(buffer.contents), size, offset)
            return count

    operations = (_Writing if writable else _Operations)(source, node, ready)
    operations._caller = lambda: mfusepy.fuse_get_context()[2]  # the reading thread's id
    threads = {"max_threads": _THREADS} if mfusepy.fuse_version_minor >= 12 else {}  # older ones have no limit
    Direct(
        operations,
        str(mount),
        foreground=True,
        fsname=NAME,
        subtype=NAME,
        auto_unmount=True,
        **({} if writable else {"ro": True}),
        max_idle_threads=_THREADS,
        **threads,
    )
