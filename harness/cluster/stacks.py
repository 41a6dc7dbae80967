"""The stacks of a job that stands still: SIGUSR1 makes every process write its own.

The launching command writes its stacks to standard error and passes the signal to the launcher, which sends it to every
rank (mpirun(1), srun(1)). A rank's stacks go to its own file in the job's work folder. faulthandler writes them: it
needs neither the interpreter nor its lock, so it also works while a thread hangs in a library.

The signal handler cannot open files, and thousands of ranks that each open one at their start are a load on a shared
file system. So faulthandler writes to a pipe, and at its other end a shell opens the file when a first line comes. It
is a process of its own, as every thread of a rank may wait for the interpreter's lock. It takes 1 ms to start and 0.2
MB that no other process shares, and ends with its rank, however that ends.
"""

import faulthandler
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STDERR = 2
_NAMES = "stacks-*.txt"
_KEEPER = 'IFS= read -r line && { printf "%s\\n" "$line"; exec cat; } >> "$FILE"'  # sh(1p)
_LAST_WRITES = 30.0  # seconds that a rank waits for its file at its end, on a busy host too


def on_signal() -> None:
    """Have SIGUSR1 write this process's stacks to standard error, from now on."""
    faulthandler.register(signal.SIGUSR1, file=STDERR, all_threads=True)


class Stacks:
    """Where one rank writes. The file is there from its first stacks on."""

    def __init__(self, folder: Path, name: str) -> None:
        """OSError where there is no shell."""
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # the launcher waits until nobody has the rank's any more
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath, "FILE": str(folder.absolute() / _NAMES.replace("*", name))},
            start_new_session=True,  # launchers signal all processes of a rank's group
        )
        assert self._keeper.stdin is not None
        self._pipe = self._keeper.stdin
        faulthandler.register(signal.SIGUSR1, file=self._pipe, all_threads=True)

    def write(self) -> None:
        """As the signal does."""
        faulthandler.dump_traceback(self._pipe, all_threads=True)

    def close(self) -> None:
        """Signals go to standard error again. What was written is in the file."""
        on_signal()
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(_LAST_WRITES)


def stack_files(folder: Path) -> list[Path]:
    """The files in which ranks of the job with this work folder have left stacks."""
    return sorted(folder.glob(_NAMES))


def save_stacks(work: Path, folder: Path) -> None:
    """Move the ranks' stacks out of a work folder that is about to be removed."""
    for path in stack_files(work):
        with suppress(OSError):
            path.rename(folder / path.name)


def copy_stacks(work: Path) -> Path:
    """A new folder that stays, with copies of the ranks' stacks."""
    folder = Path(tempfile.mkdtemp(prefix="dlio-bench-stacks-"))
    for path in stack_files(work):
        with suppress(OSError):
            shutil.copy(path, folder)
    return folder


@contextmanager
def pass_requests_on(launcher: "subprocess.Popen[bytes]", folder: Path) -> Iterator[None]:
    """In this block SIGUSR1 also goes to the launcher, and the user reads where the ranks write."""
    if threading.current_thread() is not threading.main_thread():  # it alone may handle signals
        yield
        return

    def handle(*_: object) -> None:
        request_stacks(launcher)
        # not print: the signal may have interrupted a print
        os.write(STDERR, f"dlio-bench: the stacks of the ranks go to {folder / _NAMES}\n".encode())

    faulthandler.unregister(signal.SIGUSR1)
    before = signal.signal(signal.SIGUSR1, handle)
    faulthandler.register(signal.SIGUSR1, file=STDERR, all_threads=True, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
        on_signal()


def request_stacks(launcher: "subprocess.Popen[bytes]") -> None:
    """Have all ranks write their stacks, if the launcher is still there to tell them."""
    with suppress(OSError):
        launcher.send_signal(signal.SIGUSR1)
