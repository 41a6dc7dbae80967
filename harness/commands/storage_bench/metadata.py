"""Files opened, made and removed a second.

Opens find their directory entries in the kernel's cache from the second time on, and dropping that cache takes root:
the rate of opens is that of a path that is known already. Files are removed after the last trial only: ext4 passes
over inodes whose files were removed within minutes (Linux, fs/ext4/ialloc.c, recently_deleted), and creates that took
turns with removals were measured to be slower trial by trial.
"""

import os
import time
from collections.abc import Callable, Iterable
from itertools import count, cycle, islice
from pathlib import Path

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.storage_bench import in_objects

OPEN, CREATE, UNLINK, HEAD = "open+fstat+close", "create", "unlink", "head"
OPERATIONS, SECONDS = 1000, 1.0  # of a rank and trial: whichever comes first


def opens(comm: Comm, paths: tuple[str, ...]) -> float:
    """Existing files opened, looked at and closed a second, by all ranks together. OSError."""
    return _rate(comm, _open, islice(cycle(paths), comm.rank, None))


def heads(comm: Comm, paths: tuple[str, ...]) -> float:
    """Objects looked at a second, by all ranks together, one after the other on each. BenchError."""
    return _rate(comm, in_objects.look_at, islice(cycle(paths), comm.rank, None))


def creates(comm: Comm, folder: Path, trial: int) -> tuple[float, list[str]]:
    """Empty files made a second in one folder by all ranks together, and the names of this rank's. OSError."""
    made: list[str] = []

    def create(path: str) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        made.append(path)

    return _rate(comm, create, (str(folder / f"{comm.rank}-{trial}-{number}") for number in count())), made


def unlinks(comm: Comm, made: list[str]) -> float:
    """These files removed a second, however long it takes. OSError."""
    return _rate(comm, os.unlink, made, whole=True)


def _open(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.fstat(handle)
    os.close(handle)


def _rate(comm: Comm, operation: Callable[[str], None], paths: Iterable[str], *, whole: bool = False) -> float:
    """All ranks' operations over the slowest rank's seconds; `whole`: to the end of `paths`, however long it takes."""
    comm.barrier()
    done, started, seconds = 0, time.perf_counter(), 0.0
    for path in paths:
        operation(path)
        done += 1
        seconds = time.perf_counter() - started
        if not whole and (done >= OPERATIONS or seconds >= SECONDS):
            break
    ranks = comm.allgather((done, seconds))
    return float(sum(count for count, _ in ranks) / max(seconds for _, seconds in ranks))
