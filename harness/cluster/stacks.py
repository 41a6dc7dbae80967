"""The stacks of a job that stands still: SIGUSR1 makes every process write its own.

The launching command writes its stacks to standard error and passes the signal to the launcher, which sends it to every
rank (mpirun(1), srun(1)). A rank writes to its own file in the job's work folder. faulthandler does the writing: it
needs neither the interpreter nor its lock, so it also works while a thread hangs in a library.
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


def on_signal() -> None:
    """Have SIGUSR1 write this process's stacks to standard error, from now on."""
    faulthandler.register(signal.SIGUSR1, file=STDERR, all_threads=True)


class Stacks:
    """The file of one rank. It is opened at the start, since the signal handler cannot open files."""

    def __init__(self, folder: Path, name: str) -> None:
        """OSError where the folder cannot be written."""
        self._path = _path(folder, name)
        self._file = self._path.open("w")
        faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True)

    def rename(self, name: str) -> None:
        """Give the file another name, in the same folder."""
        self._path = self._path.rename(_path(self._path.parent, name))

    def write(self) -> None:
        """As the signal does."""
        faulthandler.dump_traceback(self._file, all_threads=True)

    def close(self) -> None:
        """Signals go to standard error again; a file that nothing was written to is removed."""
        on_signal()
        self._file.close()
        with suppress(OSError):  # the launching command may have removed the folder
            if not self._path.stat().st_size:
                self._path.unlink()


def written(folder: Path) -> list[Path]:
    """The files in which ranks of the job with this work folder have left stacks."""
    files = []
    for path in sorted(folder.glob(_NAMES)):
        with suppress(FileNotFoundError):  # a rank that ends well removes its own
            if path.stat().st_size:
                files.append(path)
    return files


def keep(work: Path, folder: Path) -> None:
    """Move the ranks' stacks out of a work folder that is about to be removed."""
    for path in written(work):
        with suppress(OSError):
            path.rename(folder / path.name)


def rescued(work: Path) -> Path:
    """A new folder that stays, with copies of the ranks' stacks."""
    folder = Path(tempfile.mkdtemp(prefix="dlio-bench-stacks-"))
    for path in written(work):
        with suppress(OSError):
            shutil.copy(path, folder)
    return folder


@contextmanager
def passed_on(launcher: "subprocess.Popen[bytes]", folder: Path) -> Iterator[None]:
    """In this block SIGUSR1 also goes to the launcher, and the user reads where the ranks write."""
    if threading.current_thread() is not threading.main_thread():  # it alone may handle signals
        yield
        return

    def handle(*_: object) -> None:
        ask(launcher)
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


def ask(launcher: "subprocess.Popen[bytes]") -> None:
    """Have all ranks write their stacks, if the launcher is still there to tell them."""
    with suppress(OSError):
        launcher.send_signal(signal.SIGUSR1)


def _path(folder: Path, name: str) -> Path:
    return folder / _NAMES.replace("*", name)
