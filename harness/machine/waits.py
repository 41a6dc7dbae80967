"""What a process waits for that makes no progress: the file that one of its system calls is about."""

import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dlio_bench.harness.machine.mounts import Mount, covering, parse_mountinfo

# Numbers of system calls by machine. Their first argument is an open file: read, close, pread64, readv, getdents64,
# fsync, preadv, preadv2. Their second is a path: openat, newfstatat, statx.
_OF_FILES = {"x86_64": {0, 3, 17, 19, 217, 74, 295, 327}, "aarch64": {63, 57, 67, 65, 61, 82, 69, 286}}
_OF_PATHS = {"x86_64": {257, 262, 332}, "aarch64": {56, 79, 291}}
_PATH_BYTES = 4096
LOOK_SECONDS = 5.0  # between two looks at signals: one that both see is not met
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


def awaited_file(process: int) -> str | None:
    """The file and its file system that this process, or one that it has started, waits for.

    None if the kernel shows none. Asks the kernel alone: the file system itself may not answer.
    """
    machine = platform.machine()
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError, ValueError):  # the thread has ended, or is at work
                number, first, second = (int(word, 0) for word in (task / "syscall").read_text().split()[:3])
                path = ""
                if number in _OF_FILES.get(machine, ()):
                    path = str(Path(f"/proc/{process}/fd/{first}").readlink())
                elif number in _OF_PATHS.get(machine, ()):
                    path = _text(process, second)
                if path.startswith("/") and (mount := covering(_mounts(process), path)):
                    return f"{path} ({mount.type} at {mount.point})"
                for child in (task / "children").read_text().split():
                    if found := awaited_file(int(child)):
                        return found
    return None


def _text(process: int, address: int) -> str:
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return os.fsdecode(memory.read(_PATH_BYTES).partition(b"\0")[0])


def _mounts(process: int) -> list[Mount]:
    return parse_mountinfo(Path(f"/proc/{process}/mountinfo").read_text())


@contextmanager
def watch_signals(end: Callable[[int, str], None]) -> Iterator[None]:
    """In this block a thread of its own looks for signals that the main thread cannot meet.

    The kernel gives a signal to a thread that returns from its call, which one that storage holds does not: the signal
    stays pending, and nothing else shows it. Then `end`, which is to end the process, is called with its number and
    with what is waited for.
    """
    over = threading.Event()
    threading.Thread(target=_look, args=(over, end), name="signals", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _look(over: threading.Event, end: Callable[[int, str], None]) -> None:
    # they are for the main thread, also where it has them blocked and waits for them
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_ENDING, signal.SIGQUIT, signal.SIGCHLD})
    before = set[int]()
    while not over.wait(LOOK_SECONDS):
        pending = _pending()
        if (unmet := before & pending) and (at := awaited_file(os.getpid())):
            end(min(unmet), at)
        before = pending


def _pending() -> set[int]:
    """Signals that this process or its main thread was sent and has not got, as proc_pid_status(5) gives them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return {number for number in _ENDING for mask in masks if mask >> (number - 1) & 1}
