"""A folder as a host sees it through a file system with late news: what others make there shows after a while.

python lagging.py BEHIND POINT SECONDS mounts BEHIND at POINT.
"""

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

import mfusepy


class Lagging(mfusepy.Operations):  # type: ignore[misc, unused-ignore]
    """Passes everything on to `behind`, but hides for `seconds` what other hosts have made or renamed."""

    def __init__(self, behind: Path, seconds: float) -> None:
        self._behind, self._seconds = behind, seconds
        self._mine: set[str] = set()
        self._made: dict[str, float] = {}  # when, as far as known

    def _at(self, path: str) -> str:
        return f"{self._behind}{path}"

    def _hidden(self, path: str) -> bool:
        if path in self._mine or path == "/":
            return False
        try:
            changed = os.lstat(self._at(path)).st_ctime
        except OSError:
            return False
        self._made[path] = min(changed, self._made.get(path, changed))  # what is in a folder changes it, too
        return time.time() - self._made[path] < self._seconds

    def _seen(self, path: str) -> str:
        if self._hidden(path):
            raise mfusepy.FuseOSError(errno.ENOENT)
        return self._at(path)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        at = self._seen(path) if fh is None else self._at(path)
        status = os.lstat(at)
        return {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}

    def readdir(self, path: str, fh: int) -> list[str]:
        names = os.listdir(self._seen(path))  # noqa: PTH208
        return [".", "..", *(name for name in names if not self._hidden(f"{path.rstrip('/')}/{name}"))]

    def open(self, path: str, flags: int) -> int:
        return os.open(self._seen(path), flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._mine.add(path)
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._seen(path), length)
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._at(old), self._at(new))  # noqa: PTH104
        self._mine.add(new)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._mine.add(path)
        os.mkdir(self._at(path), mode)  # noqa: PTH102
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))  # noqa: PTH108
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))  # noqa: PTH106
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


if __name__ == "__main__":
    behind, point, seconds = sys.argv[1:]
    lagging = Lagging(Path(behind), float(seconds))
    mfusepy.FUSE(lagging, point, foreground=False, nothreads=True, entry_timeout=0, attr_timeout=0)
