"""Folders that their process locks, so that the next process can remove those of a killed one.

The lock is a flock: the kernel releases it when the process ends. No clock is asked how old a folder is: whose folder
was removed before it was locked makes another.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp


def make_locked(prefix: str, below: Path) -> tuple[Path, int]:
    """A new folder in `below`, and the handle that locks it. OSError."""
    while True:
        folder = Path(mkdtemp(prefix=prefix, dir=below))
        lock = _lock_new(folder)
        if lock is not None:
            return folder, lock


def sweep(prefix: str, below: Path, cleared: Callable[[Path], bool]) -> None:
    """Remove the folders of this prefix that no process has locked.

    cleared: removes what belongs to a folder and lies elsewhere, and says whether the folder may go. OSError of it: the
    folder stays.
    """
    for folder in below.glob(f"{prefix}*"):
        with suppress(OSError):  # in use, somebody else's, no folder, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if cleared(folder.resolve()):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _lock_new(folder: Path) -> int | None:
    """Lock a new folder: a handle, to be closed; None if another process took it for a killed one's and removed it."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        os.close(handle)
        raise
    if folder.exists():
        return handle
    os.close(handle)
    return None
