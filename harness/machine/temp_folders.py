"""Temporary folders that their process locks, so that the next process can remove those of a killed one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

from dlio_bench.harness.machine import mounts, rescue
from dlio_bench.locked_folders import make_locked, sweep

# Outlives the process that holds the other end of its standard input, and then removes the folder: until the other
# ranks of the node, who are killed at the same time, write no more there. A removed folder is no work. The fork makes
# it nobody's child, as launchers end what ranks have started.
_REMOVER = """
import os, shutil, sys, time
if os.fork():
    os._exit(0)
sys.stdin.read()
for _ in range(50):
    if not os.path.isdir(sys.argv[1]):
        break
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(0.2)
"""


@contextmanager
def temp_folder(prefix: str, below: Path | None = None) -> Iterator[Path]:
    """A new folder in `below` or the temporary folder, removed when the block is left.

    First removes the folders of this prefix that killed processes have left, with their mounts.
    """
    folder, lock = _make_locked(prefix, below or Path(gettempdir()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def outliving_folder(prefix: str, below: Path) -> Iterator[Path]:
    """As `temp_folder`, for a job's ranks that may be killed: another process removes the folder when this one is gone.

    After a failure too, so that ranks which are still at work do not miss it before they are ended. Where a launcher
    kills all processes of a job alike, the folder stays until the next one of its prefix is made.
    """
    folder, lock = _make_locked(prefix, below)
    remover = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _REMOVER, str(folder)],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # launchers end process groups, too
    )
    remover.wait()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
    assert remover.stdin is not None
    remover.stdin.close()


@contextmanager
def rescued_folder(prefix: str, below: Path, file: Path) -> Iterator[Path]:
    """As `temp_folder`, but if this process dies its files are kept in the zip archive `file`: another process does it.

    It holds the lock until then, so that no sweep takes the folder from it. A launcher that kills it too (a scheduler
    that kills all processes of a step at once) loses the files.
    """
    folder, lock = _make_locked(prefix, below)
    rescuer = subprocess.Popen(
        [sys.executable, "-I", "-S", rescue.__file__, str(folder), str(file), str(os.getpid())],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # launchers end process groups, too
        pass_fds=[lock],
    )
    rescuer.wait()
    assert rescuer.stdin is not None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        rescuer.stdin.close()
        os.close(lock)


def _make_locked(prefix: str, below: Path) -> tuple[Path, int]:
    """A new folder, and the handle that locks it."""
    sweep(prefix, below, _unmount_below)
    return make_locked(prefix, below)


def _unmount_below(folder: Path) -> bool:
    """Unmount what FUSE has mounted below a folder; whether nothing is mounted there now. OSError.

    Reads the kernel's list of mounts: a mount whose daemon is dead answers no call.
    """
    for mount in mounts.mounts_below(folder):
        if mount.type.partition(".")[0] == "fuse":
            subprocess.run(["fusermount3", "-u", "-z", "-q", mount.point], check=False, stderr=subprocess.DEVNULL)
    return not mounts.mounts_below(folder)
