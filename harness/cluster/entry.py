"""What every launched rank does around its work: it connects, compares digests, reports events and its failure."""

import json
import os
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dlio_bench.errors import BenchError, EnvironmentFailure, Stalled, out_of_memory
from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.environment import code_digest, code_place, host_name
from dlio_bench.harness.cluster.job import KEPT_FILE, SavedJob, await_path, write_measured
from dlio_bench.harness.cluster.life import Pulse, launcher_rank, life, read_limit
from dlio_bench.harness.cluster.mpi import connect
from dlio_bench.harness.cluster.process import DOING, EVENT, FAILED, LAST_WORDS, MET, STALLED
from dlio_bench.harness.cluster.stacks import Stacks, on_signal
from dlio_bench.harness.machine.mounts import explain_os_error
from dlio_bench.processes import die_with_parent

STDOUT = 1
JobT = TypeVar("JobT", bound=SavedJob)


def run_rank(folder: Path, start: Callable[[], tuple[int, Callable[[Comm], None]]]) -> int:
    """Run one rank of the job whose work folder is `folder`; its exit status. A failure ends all ranks.

    `start` reads the job and returns the number of ranks and what each of them does. If the launching command watches
    the ranks, the process sends signs of life until it ends.
    """
    die_with_parent()
    about = {"rank": launcher_rank(), "ranks": 0, "host": host_name(), "process": os.getpid(), "mute": False}
    with suppress(EnvironmentFailure):  # what is missing then is told below
        await_path(folder)
    timeout = read_limit(folder)
    pulse = Pulse(timeout, about, _print_unbuffered, folder) if timeout else None
    comm: Comm | None = None
    stacks: Stacks | None = None
    try:
        on_signal()  # as a signal ends processes that know none
        with suppress(OSError):  # no shell, or no process left: stacks go to standard error
            stacks = Stacks(folder, _report_name(about))
        interfaces.require_named()  # MPI would fail on it too, in words of its own
        ranks, body = start()
        about |= {"ranks": ranks, "mute": True}  # MPI waits for all ranks with the interpreter's lock held
        with life.waits():
            if pulse is not None:
                pulse.send()
            comm = connect(ranks)
        if pulse is None and (timeout := read_limit(folder)):  # its file has shown only now
            pulse = Pulse(timeout, about, _print_unbuffered, folder)
        about |= {"rank": comm.rank, "mute": False}
        if comm.rank == 0:
            say({"event": MET})
        body(comm)
    except Exception as error:  # noqa: BLE001 - whatever it was must be told before the rank goes
        report = _report(error)
        say({"event": FAILED, **report})  # the file may show too late where the command runs
        where = f"{host_name()}-{comm.rank if comm else time.monotonic_ns()}"
        with suppress(OSError):  # a full disk
            (folder / f"error-{where}.part").write_text(json.dumps(report))
            (folder / f"error-{where}.part").rename(folder / f"error-{where}.json")
        if isinstance(error, Stalled) and stacks is not None:
            _tell_where(stacks)
        if comm is not None:
            comm.abort(report["status"])
        return int(report["status"])
    finally:
        if stacks is not None:
            stacks.close()
        life.mark_done()
    return 0


class Caller:
    """The command that launched this rank, which hears rank 0 alone. folder: of the job, where all of them meet."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self._first = rank == 0

    def show_activity(self, doing: str) -> None:
        """Say what the ranks do, for the line of progress."""
        if self._first:
            say({"event": DOING, "what": doing})

    def save_part(self, part: Mapping[str, Any]) -> None:
        """Save a part of what is measured, which the command finds where the job does not end well. OSError."""
        if self._first:
            with (self.folder / KEPT_FILE).open("a") as file:
                file.write(f"{json.dumps(part)}\n")


def run_measuring_rank(kind: type[JobT], measure: Callable[[JobT, Comm, Caller], Mapping[str, Any]]) -> int:
    """Run one rank of a measurement, as `python -P -m MODULE FOLDER`; returns its exit status.

    FOLDER has the job, of this kind. Rank 0 writes there what `measure` returns. All ranks run the command's code.
    """
    folder = Path(sys.argv[1])

    def start() -> tuple[int, Callable[[Comm], None]]:
        job = kind.load(folder)

        def body(comm: Comm) -> None:
            require_same_code(comm, job.code_digest)
            write_measured(folder, comm, measure(job, comm, Caller(folder, comm.rank)))

        return job.ranks, body

    return run_rank(folder, start)


def _report_name(about: Mapping[str, Any]) -> str:
    """How this rank's file is called. Some launchers do not number ranks before MPI does."""
    return f"{about['host']}-process-{about['process']}" if about["rank"] is None else f"rank-{about['rank']}"


def _tell_where(stacks: Stacks) -> None:
    """Write this rank's stacks, and have the launching command ask the other ranks for theirs.

    What was written is in the file then: the job is about to be ended.
    """
    stacks.write()
    say({"event": STALLED})
    time.sleep(LAST_WORDS)
    stacks.close()


def require_same(comm: Comm, what: str, expected: str, here: str, thing: str) -> None:
    """EnvironmentFailure on every rank when one of them has another digest of `what` than `expected`."""
    differing = int(comm.greatest(np.array([comm.size - comm.rank if here != expected else 0], np.float64))[0])
    if differing:
        rank = comm.size - differing
        host, digest = comm.allgather((host_name(), here))[rank]
        raise EnvironmentFailure(
            f"Rank {rank} on {host} has another {what} (digest {digest[:19]}...) than the command that launched it "
            f"({expected[:19]}...). Make the same {thing} visible on every node."
        )


def require_same_code(comm: Comm, expected: str) -> None:
    """`require_same` for the code. The first rank of a host reads it, for all whose code is the same files.

    To read it takes a rank as many calls of the file system as to import it.
    """
    here = (host_name(), code_place())
    part = comm.split(zlib.crc32(repr(here).encode()) & 0x7FFFFFFF)  # MPI_Comm_split's colours are not negative
    assert part is not None
    alike = len(set(part.allgather(here))) == 1  # a checksum may be that of two hosts
    digest = code_digest() if part.rank == 0 or not alike else ""
    require_same(comm, "code", expected, part.allgather(digest)[0] if alike else digest, "installation")


def say(event: dict[str, Any]) -> None:
    """Tell the launching command, which reads this rank's standard output."""
    sys.stdout.write(f"{EVENT}{json.dumps(event)}\n")  # in one piece, whatever other threads say
    sys.stdout.flush()


def _print_unbuffered(event: dict[str, Any]) -> None:
    """As `say`, for a thread that may still run when the process ends: takes no lock of Python's."""
    os.write(STDOUT, f"{EVENT}{json.dumps(event)}\n".encode())


def _report(error: Exception) -> dict[str, Any]:
    """The report for the launching command: a message for its user, or the trace of a defect of dlio-bench."""
    if isinstance(error, OSError):
        error = EnvironmentFailure(explain_os_error(error, f" on {host_name()}"))
    if isinstance(error, MemoryError):
        smaller = "fewer ranks on a machine, a smaller --batch or a smaller --staging"
        error = out_of_memory(error, f"for a rank on {host_name()}", smaller)
    if isinstance(error, BenchError):
        return {"status": error.status, "message": str(error), "expected": True}
    trace = "".join(traceback.format_exception(error))
    return {"status": EnvironmentFailure.status, "message": trace, "expected": False}
