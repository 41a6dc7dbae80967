"""Temporary folders held by the process that made them, so that what a killed one left can be told and removed.

A folder is held by a lock (flock) that the kernel drops with the process.
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

JUST_MADE = 60.0  # seconds: a younger folder may be about to be held


@contextmanager
def temp_folder(prefix: str, below: Path | None = None) -> Iterator[Path]:
    """A new folder in `below`, or the temporary folder, gone when the block is left.

    What killed processes left there under the same prefix goes first, its mounts included.
    """
    _sweep(prefix, below or Path(gettempdir()))
    with TemporaryDirectory(prefix=prefix, dir=below) as made, _locked(Path(made)):
        yield Path(made)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for as long as this process lives."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sweep(prefix: str, below: Path) -> None:
    """Remove the folders that nobody holds any more."""
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
    """Whether nothing is mounted below a folder, after what FUSE has mounted there was taken away. OSError.

    A mount whose daemon is dead answers no call, so the kernel's list is asked instead of the mount.
    """
    for mount in mounts.below(folder):
        if mount.type.partition(".")[0] == "fuse":
            subprocess.run(["fusermount3", "-u", "-z", "-q", mount.point], check=False, stderr=subprocess.DEVNULL)
    return not mounts.below(folder)
