"""Processes that end with the one they work for, and worker processes by multiprocessing that leave no names behind."""

import ctypes
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio_bench import locked_folders
from dlio_bench.free_space import SHARED_MEMORY

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

PR_SET_PDEATHSIG = 1  # prctl(2)

# Loaded here: it is called between fork and exec, where loading could wait for a lock of another thread.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent is gone, so that no rank is ever left behind."""
    _prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)


def begin_worker() -> None:
    """What a worker does first that a fork server of multiprocessing forked: it is to end with its rank.

    The server ends when no process holds the writing end of its pipe. The rank holds it, and each worker inherits
    it. After a SIGKILL of the rank a worker that kept it would keep the server, and the server, its parent, the worker.
    The launcher of the rank would wait for both, as its standard output is theirs too. Ctrl-C is left to the rank.
    """
    from multiprocessing import forkserver  # late: launchers need it not

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server: Any = forkserver._forkserver  # Python has no public name for the pipe
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


# Worker processes by multiprocessing, none of whose names outlive them.
#
# It names sockets and semaphores, which it removes only where Python ends in good order: a process that a launcher ends
# or the kernel kills leaves them, as its resource tracker is killed with it.

PREFIX = "dlio-bench-workers-"  # of the folders that processes with workers have in shared memory
_LAST = -100  # priority of a finalizer: behind those of semaphores, which remove themselves


def spawn() -> "SpawnContext":
    """Workers that are new interpreters."""
    import multiprocessing  # late: a command that only sweeps needs it not

    _settle_folder()
    return multiprocessing.get_context("spawn")


def fork_server(module: str) -> "ForkServerContext":
    """Workers that a server forks, which is a new interpreter and has loaded `module`.

    A process that has MPI and threads must not be forked itself.
    """
    import multiprocessing

    _settle_folder()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


def sweep() -> None:
    """Remove what processes that are gone have left: their folders, and semaphores that are named after them."""
    locked_folders.sweep(PREFIX, SHARED_MEMORY, _remove_semaphores)


def _settle_folder() -> None:
    """Give this process a folder, once, in which its sockets are and after which its semaphores are named. OSError."""
    from multiprocessing import process, util

    # Python has no public way to choose either. Semaphores are files of shared memory, in no folder (sem_overview(7)).
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]  # private
    if Path(config.get("tempdir") or "").name.startswith(PREFIX):
        return
    sweep()
    folder, lock = locked_folders.make_locked(PREFIX, SHARED_MEMORY)
    config |= {"tempdir": str(folder), "semprefix": f"/{folder.name}"}
    util.Finalize(None, _remove_folder, (folder, lock), exitpriority=_LAST)


def _remove_folder(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_semaphores(folder: Path) -> bool:
    for semaphore in SHARED_MEMORY.glob(f"sem.{folder.name}-*"):
        with suppress(FileNotFoundError):
            semaphore.unlink()
    return True
