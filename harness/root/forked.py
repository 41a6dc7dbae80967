"""What a process does first so that it ends when the one that it works for is gone."""

import ctypes
import os
import signal
from typing import Any

PR_SET_PDEATHSIG = 1  # prctl(2)

# Loaded here: it is called between fork and exec, where loading could wait for a lock of another thread.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent is gone, so that no rank is ever left behind."""
    _prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)


def begin_worker() -> None:
    """What a worker does first that a fork server of multiprocessing forked: it is to end with its rank.

    The server ends when nobody holds the writing end of its pipe any more. The rank holds it, and each worker inherits
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
