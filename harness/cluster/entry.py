"""What every launched rank does around its own work: connect, compare, speak, and say why it failed."""

import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlio_bench.errors import BenchError, EnvironmentFailure, Stalled, no_memory
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.mpi import connect
from dlio_bench.harness.cluster.process import EVENT, FAILED, STALLED, die_with_parent
from dlio_bench.harness.cluster.stacks import Stacks, unique

# A rank that waited in vain leaves the others so long to write where they stand before it ends the job.
LAST_WORDS = 2.0  # seconds


def run_rank(folder: Path, start: Callable[[], tuple[int, Callable[[Comm], None]]]) -> int:
    """Run one rank of the job whose work folder is `folder`; returns its exit status, having ended all on a failure.

    `start` reads the job and gives the number of its ranks and what each of them does.
    """
    die_with_parent()
    comm: Comm | None = None
    stacks: Stacks | None = None
    try:
        stacks = Stacks(folder, f"{host_name()}-{unique()}")
        ranks, body = start()
        comm = connect(ranks)
        stacks.rename(f"rank-{comm.rank}")
        body(comm)
    except Exception as error:  # noqa: BLE001 - whatever it was must be told before the rank goes
        report = _report(error)
        where = f"{host_name()}-{comm.rank if comm else time.monotonic_ns()}"
        try:
            (folder / f"error-{where}.part").write_text(json.dumps(report))
            (folder / f"error-{where}.part").rename(folder / f"error-{where}.json")
        except OSError:  # a full disk
            say({"event": FAILED, **report})
        if isinstance(error, Stalled) and stacks is not None:
            _tell_where(stacks)
        if comm is not None:
            comm.abort(report["status"])
        return int(report["status"])
    finally:
        if stacks is not None:
            stacks.close()
    return 0


def _tell_where(stacks: Stacks) -> None:
    """Write where this rank's threads stand, and have the launching command ask the same of the others."""
    stacks.write()
    say({"event": STALLED})
    time.sleep(LAST_WORDS)


def require_same(comm: Comm, what: str, asked: str, here: str, thing: str) -> None:
    """EnvironmentFailure on every rank when one of them has another digest of `what` than was asked for."""
    for rank, found in enumerate(comm.allgather(here)):
        if found != asked:
            raise EnvironmentFailure(
                f"Rank {rank} has another {what} (digest {found[:19]}...) than the command that launched it "
                f"({asked[:19]}...). Make the same {thing} visible on every node."
            )


def say(event: dict[str, Any]) -> None:
    """Tell the launching command, which reads this rank's standard output."""
    print(EVENT + json.dumps(event), flush=True)


def _report(error: Exception) -> dict[str, Any]:
    """What the launching command is told: a message for its user, or the trace of a defect of ours."""
    if isinstance(error, OSError):
        error = EnvironmentFailure(f"{error.filename or 'A file'} on {host_name()}: {error.strerror or error}.")
    if isinstance(error, MemoryError):
        error = EnvironmentFailure(no_memory(f"A rank on {host_name()}", error))
    if isinstance(error, BenchError):
        return {"status": error.status, "message": str(error), "expected": True}
    trace = "".join(traceback.format_exception(error))
    return {"status": EnvironmentFailure.status, "message": trace, "expected": False}
