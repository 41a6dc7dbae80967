"""Signs of life that a rank sends to the launching command, which names a rank that makes no progress.

A rank makes progress when it leaves a wait for others, begins a step of announced length, uses its processors, or
reads or writes. One of its threads reports that regularly on standard output; `watch` evaluates the reports.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.machine.waits import awaited_file

PULSE = "pulse"  # the event
_LIMIT = "timeout"  # the file of a job's work folder that tells its ranks how long they may stand still
_SHORTEST, _LONGEST = 0.1, 15.0  # seconds between two pulses
_LAST_WORDS = 2.0  # seconds that the first of several copies on other hosts has to tell why all end
_LONGEST_WORDS = 60.0  # the same, of one that is seen to be at it
_PULSES = 8  # in the time that is allowed
_BUSY = 0.05  # of a core: threads that only look whether something has come use less
_NOISE = 4096  # bytes: what a pulse itself reads and writes is not quite the same every time


class Life:
    """What the trainer's thread of this process does.

    moves: a counter of progress. pending: waits for other ranks that it is in. until: when an announced step ends, in
    seconds of time.monotonic. patience: seconds that the current wait may last by its own time limit.
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
        """In this block the thread waits for others. It gives up by itself after `patience` seconds (0: never)."""
        self.pending += 1
        self.patience = max(patience, self.patience)
        try:
            yield
        finally:
            self.pending -= 1
            self.moves += 1
            if patience:
                self.patience = 0.0

    def mark_done(self) -> None:
        """The rank has finished and only waits for the others to end."""
        self.pending += 1

    def begin_step(self, seconds: float) -> None:
        """A step of that length begins; until it ends the rank counts as making progress."""
        self.moves += 1
        self.until = time.monotonic() + seconds


life = Life()  # of this process, which is one rank


class Pulse:
    """Sends signs of life until `close` or the end of the process; `idle`: seconds since the last progress.

    A rank that makes no progress for longer than `timeout` looks whether its job still exists, and ends if not.
    """

    def __init__(
        self, timeout: float, about: dict[str, Any], tell: Callable[[dict[str, Any]], None], folder: Path
    ) -> None:
        """`about`: the rank's identity, sent with every event; the caller may add to it later. folder: of the job."""
        self._timeout, self._lookout = timeout, Lookout(folder / _LIMIT, timeout)
        self._every = min(max(timeout / _PULSES, _SHORTEST), _LONGEST)
        self._about, self._tell = about, tell
        self._idle = 0.0
        self._end = threading.Event()
        _beating.append(self)
        self._thread = threading.Thread(target=self._send_regularly, name="pulse", daemon=True)
        self._thread.start()

    def send(self) -> None:
        """Send an event now."""
        with suppress(OSError, ValueError):  # the launching command has ended
            at = awaited_file(os.getpid()) if self._idle > self._timeout / 2 else None
            state = {"idle": self._idle, "waiting": life.waiting, "patience": life.patience, "at": at}
            self._tell({"event": PULSE, **state, **self._about})

    def close(self) -> None:
        """Stop sending."""
        self._end.set()
        self._thread.join()

    def _send_regularly(self) -> None:
        seen, then = _signs(), time.monotonic()
        while True:
            self.send()
            if self._end.wait(self._every):
                return
            now, signs = time.monotonic(), _signs()
            # a process that was stopped in between has not been idle for that long
            self._idle += min(now - then, 2 * self._every)
            if _made_progress(seen, signs, now - then, now):
                self._idle = 0.0
            seen, then = signs, now
            if self._idle > self._timeout and self._lookout.is_over():
                exit_with_launcher()


_beating: list[Pulse] = []  # of this process


def stop_pulse() -> None:
    """The process goes on without this job: no more signs of life."""
    while _beating:
        _beating.pop().close()


def _signs() -> tuple[int, float, int]:
    """Moves, CPU seconds, and bytes read and written so far, this thread's left out."""
    return life.moves, time.process_time() - time.thread_time(), _bytes("self") - _bytes("thread-self")


def _bytes(task: str) -> int:
    """Bytes that went through read and write calls (proc_pid_io(5)); 0 where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{task}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines[:2])
    return 0


def _made_progress(before: tuple[int, float, int], after: tuple[int, float, int], seconds: float, now: float) -> bool:
    if after[0] != before[0] or now < life.until:
        return True
    # while the rank waits for others, reads ahead by its threads are no progress of the job
    return not life.waiting and (after[1] - before[1] > _BUSY * seconds or after[2] - before[2] > _NOISE)


def write_limit(folder: Path, timeout: float) -> bool:
    """Tell the ranks the time limit, in seconds, by a file in the work folder; whether it could be written."""
    with suppress(OSError):
        (folder / _LIMIT).write_text(str(timeout))
        return True
    return False


def forget_limit(folder: Path) -> None:
    """The job is over."""
    with suppress(OSError):
        (folder / _LIMIT).unlink()


def read_limit(folder: Path) -> float:
    """The time limit in seconds; 0 where no command watches the ranks."""
    with suppress(OSError, ValueError):
        return float((folder / _LIMIT).read_text())
    return 0.0


def processes_started_together(env: Mapping[str, str]) -> int:
    """How many processes a launcher has started together with this one; 1 where none has.

    Open MPI; MPICH, Intel MPI and PALS; srun; jsrun.
    """
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JSM_NAMESPACE_SIZE"):
        if env.get(name, "").isdigit():
            return int(env[name])
    return 1


def launcher_rank(env: Mapping[str, str] = os.environ) -> int | None:
    """The number that the launcher gave this rank, before MPI tells; None where it did not."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "FLUX_TASK_RANK"):
        if env.get(name, "").isdigit():
            return int(env[name])
    return None


def after_the_first() -> None:
    """Wait, in a copy that is not the first, until the first has told why all end: launchers end all with one.

    A copy that they end says nothing.
    """
    with suppress(KeyboardInterrupt):
        first = _first_beside()
        if first is None:
            time.sleep(_LAST_WORDS)
        else:
            select.select([first], [], [], _LONGEST_WORDS)  # until it has ended
            os.close(first)


def _first_beside() -> int | None:
    """A descriptor of the first copy; None unless the process that started this one has started it too."""
    for children in Path(f"/proc/{os.getppid()}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, children.read_text().split()):
                told = _environment(child)
                if launcher_rank(dict(entry.partition("=")[::2] for entry in told)) == 0:
                    return os.pidfd_open(child)
    return None


def _environment(pid: int) -> list[str]:
    with suppress(OSError):  # it has ended, or is a zombie, of which Linux 6.18 tells no environment
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return []


# A rank whose host was cut off from the others ends by itself: no other process can end it.
#
# The launcher's daemon on such a host learns of it only when TCP gives up: for Open MPI after some 15 minutes.

MISSED = 2  # looks in a row that find no file: a file system under repair may lose sight of it once
# Daemons that start ranks on other hosts: of Open MPI 5 and 4, and of Hydra
_DAEMONS = ("prted", "orted", "hydra_pmi_proxy")


class Lookout:
    """Looks for a file in the work folder that is there as long as the job is, in a thread that may hang there."""

    def __init__(self, file: Path, patience: float) -> None:
        """patience: seconds in which the file system must answer."""
        self._file, self._patience = file, patience
        self._missed, self._asked = 0, 0.0
        self._thread: threading.Thread | None = None

    def is_over(self) -> bool:
        """Whether the job has ended, or its folder does not answer. To be called from time to time."""
        if self._thread is None or not self._thread.is_alive():
            self._asked = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="lookout", daemon=True)
            self._thread.start()
            self._thread.join(0.1)
        return self._missed >= MISSED or (self._thread.is_alive() and time.monotonic() - self._asked > self._patience)

    def _look(self) -> None:
        try:
            self._file.stat()
            self._missed = 0
        except FileNotFoundError:
            self._missed += 1
        except OSError:  # it cannot be told
            pass


def exit_with_launcher() -> None:
    """End this process at once, and the launcher's daemon on this host with all that it has started here."""
    parent = os.getppid()
    with suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().strip() in _DAEMONS:
            os.kill(parent, signal.SIGTERM)
    os._exit(EnvironmentFailure.status)
