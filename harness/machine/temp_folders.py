"""Temporary folders that their process locks, so that the next process can remove those of a killed one.

The lock is a flock: the kernel releases it when the process ends.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from dlio_bench.harness.machine import mounts

JUST_MADE = 60.0  # seconds: the process that made a younger folder may not have locked it yet


@contextmanager
def temp_folder(prefix: str, below: Path | None = None) -> Iterator[Path]:
    """A new folder in `below` or the temporary folder, removed when the block is left.

    First removes the folders of this prefix that killed processes have left, with their mounts.
    """
    _sweep(prefix, below or Path(gettempdir()))
    with TemporaryDirectory(prefix=prefix, dir=below) as made, _locked(Path(made)):
        yield Path(made)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; the lock ends with the block or with this process."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sweep(prefix: str, below: Path) -> None:
    """Remove the folders that no process has locked."""
    for folder in below.glob(f"{prefix}*"):
        with suppress(OSError):  # in use, somebody else's, no folder, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(handle).st_mtime < JUST_MADE:
                    continue
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _unmounted(folder.resolve()):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _unmounted(folder: Path) -> bool:
    """Unmount what FUSE has mounted below a folder; whether nothing is mounted there now. OSError.

    Reads the kernel's list of mounts: a mount whose daemon is dead answers no call.
    """
    for mount in mounts.below(folder):
        if mount.type.partition(".")[0] == "fuse":
            subprocess.run(["fusermount3", "-u", "-z", "-q", mount.point], check=False, stderr=subprocess.DEVNULL)
    return not mounts.below(folder)
