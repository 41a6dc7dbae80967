"""Signs of life: what a rank tells the command that launched it, so that one which stands still is noticed and named.

A rank moves when it leaves a wait for others, begins a step of announced length, uses its processors, or reads or
writes. A thread of it tells so now and then on standard output; `watch` is the other end.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PULSE = "pulse"  # the event
_LIMIT = "timeout"  # the file of a job's work folder that tells its ranks how long they may stand still
_SHORTEST, _LONGEST = 0.1, 15.0  # seconds between two pulses
_PULSES = 8  # in the time that is allowed
_BUSY = 0.05  # of a core: threads that only look whether something has come use less
_NOISE = 4096  # bytes: what a pulse itself reads and writes is not quite the same every time


class Life:
    """What the trainer's thread of this process does. `moves` counts; `pending`: waits for others that it is in;
    `until`: when an announced step ends, in seconds of time.monotonic; `patience`: seconds for which a wait that has a
    limit of its own goes on.
    """

    def __init__(self) -> None:
        self.moves = self.pending = 0
        self.until = self.patience = 0.0

    @property
    def waiting(self) -> bool:
        """Whether it waits for other ranks."""
        return self.pending > 0

    @contextmanager
    def waits(self, patience: float = 0.0) -> Iterator[None]:
        """While this lasts it waits for others; for `patience` seconds nobody else need end that."""
        self.pending += 1
        self.patience = max(patience, self.patience)
        try:
            yield
        finally:
            self.pending -= 1
            self.moves += 1
            if patience:
                self.patience = 0.0

    def is_done(self) -> None:
        """Nothing is left but to wait for the others' end."""
        self.pending += 1

    def begins(self, seconds: float) -> None:
        """A step of that length begins, in which nothing else may be seen to move."""
        self.moves += 1
        self.until = time.monotonic() + seconds


life = Life()  # of this process, which is one rank


class Pulse:
    """Tells of a rank's life until its end or `close`: the event's `idle` are the seconds since it moved."""

    def __init__(self, timeout: float, about: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        """`about`: who it is; what is added later is told too."""
        self._every = min(max(timeout / _PULSES, _SHORTEST), _LONGEST)
        self._about, self._tell = about, tell
        self._idle = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """Tell now."""
        with suppress(OSError, ValueError):  # nobody reads any more
            self._tell({"event": PULSE, "idle": self._idle, **_state(), **self._about})

    def close(self) -> None:
        """No more of it."""
        self._end.set()
        self._thread.join()

    def _beat(self) -> None:
        seen, then = _signs(), time.monotonic()
        while True:
            self.tell()
            if self._end.wait(self._every):
                return
            now, signs = time.monotonic(), _signs()
            # a process that was stopped in between has not been idle for that long
            self._idle += min(now - then, 2 * self._every)
            if _moved(seen, signs, now - then, now):
                self._idle = 0.0
            seen, then = signs, now


def _state() -> dict[str, Any]:
    return {"waiting": life.waiting, "patience": life.patience}


def _signs() -> tuple[int, float, int]:
    """Moves, CPU seconds, and bytes read and written so far, this thread's left out."""
    return life.moves, time.process_time() - time.thread_time(), _bytes("self") - _bytes("thread-self")


def _bytes(who: str) -> int:
    """Bytes that went through read and write calls (proc_pid_io(5)); 0 where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{who}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines[:2])
    return 0


def _moved(before: tuple[int, float, int], after: tuple[int, float, int], seconds: float, now: float) -> bool:
    if after[0] != before[0] or now < life.until:
        return True
    # while it waits for others its threads may read ahead, which brings nobody further
    return not life.waiting and (after[1] - before[1] > _BUSY * seconds or after[2] - before[2] > _NOISE)


def write_limit(folder: Path, timeout: float) -> bool:
    """Tell the ranks of the job with this work folder, in seconds; whether that could be written down."""
    with suppress(OSError):
        (folder / _LIMIT).write_text(str(timeout))
        return True
    return False


def forget_limit(folder: Path) -> None:
    """The job is over."""
    with suppress(OSError):
        (folder / _LIMIT).unlink()


def read_limit(folder: Path) -> float:
    """What they were told; 0 where nobody watches them."""
    with suppress(OSError, ValueError):
        return float((folder / _LIMIT).read_text())
    return 0.0


def numbered() -> int | None:
    """The number that the launcher gave this rank, before MPI tells; None where it did not."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "FLUX_TASK_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None
