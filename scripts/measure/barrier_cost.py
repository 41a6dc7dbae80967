"""What a barrier costs beyond the last arrival, ours and MPI_Barrier in turn, and the CPU that waiting takes:

    python scripts/measure/barrier_cost.py [--ranks 2,4,8] [--rounds 200] [--floor]

Ranks share one machine and its monotonic clock. Four ways to come: all at once; after a step of 9.36 ms that each
sleeps (CosmoFlow's, published); one of them, drawn anew each time, 5 ms late; each of them at a moment of its own
within 5 ms. A round costs what passes from the last arrival to the last leave; shown is the median of all rounds, and
the CPU time of a rank that waits 50 ms for another. --floor adds the same barrier in C (meeting.c, by gcc), which looks
out for 0, 1 or 100 ms before it sleeps: what sleeping costs, and what never sleeping costs.
"""

import argparse
import ctypes
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dlio_bench.harness.cluster import launch_site, launchers
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.links import Inbox, send
from dlio_bench.harness.cluster.meeting import make_page, map_page
from dlio_bench.harness.cluster.mpi import connect
from dlio_bench.harness.cluster.start import launch_env
from dlio_bench.harness.training.compute import fine_timers

ROOT = Path(__file__).parents[2]
STEP, LATE, LONG = 9.36e-3, 5e-3, 50e-3  # seconds
BLOCK = 25  # rounds of one barrier before the other's turn
LOOK_OUTS = (0.0, 1e-3, 100e-3)  # seconds, of the barrier in C
WAYS = ("at once", "after a step", "one late", "all at random")

Barrier = Callable[[], None]


def delays(ranks: int, rounds: int) -> dict[str, np.ndarray]:
    """Seconds that each rank sleeps before a barrier, [rounds, ranks], by the way of coming."""
    draws = np.random.default_rng(1)
    late = np.arange(ranks) == draws.integers(ranks, size=(rounds, 1))
    shapes = [
        np.zeros((rounds, ranks)),
        np.full((rounds, ranks), STEP),
        late * LATE,
        draws.random((rounds, ranks)) * LATE,
    ]
    return dict(zip(WAYS, shapes, strict=True))


def costs(comm: Comm, barrier: Barrier, sleeps: np.ndarray) -> list[float]:
    """Seconds from the last arrival to the last leave of each round."""
    stamps = []
    for sleep in sleeps[:, comm.rank]:
        barrier()
        if sleep:
            time.sleep(sleep)
        came = time.monotonic()
        barrier()
        stamps.append((came, time.monotonic()))
    found = np.array(comm.allgather(stamps))  # [ranks, rounds, 2]
    return list(found[:, :, 1].max(axis=0) - found[:, :, 0].max(axis=0))


def cpu(comm: Comm, barrier: Barrier) -> float:
    """CPU seconds of the rank that waits most busily while the first one is away for 50 ms."""
    spent = []
    for _ in range(5):
        barrier()
        if comm.rank == 0:
            time.sleep(LONG)
        begun = time.process_time()
        barrier()
        spent.append(time.process_time() - begun)
    return max(comm.allgather(statistics.median(spent))[1:])


def in_c(comm: Comm, library: Path, look_out: float) -> Barrier:
    """The barrier of meeting.c, which looks out for so many seconds before it sleeps."""
    with Inbox() as inbox:
        _, *others = comm.allgather(inbox.where)
        handle = make_page() if comm.rank == 0 else None
        for other in others if handle is not None else ():
            send([handle], other)
        comm.barrier()
        page = map_page(inbox.take(1)[0] if handle is None else handle)
    if page is None:
        raise SystemExit("There is no memory that ranks can share.")
    whole = (ctypes.c_char * len(page)).from_buffer(page)
    meet, numbers = ctypes.CDLL(str(library)).meet, itertools.count(1)
    word, came, asleep = (ctypes.byref(whole, at) for at in (0, 1024, 2048))
    seconds, size, place = ctypes.c_double(look_out), comm.size, comm.rank
    return lambda: meet(word, came, asleep, size, place, ctypes.c_uint8(next(numbers)), seconds)


def measure(ranks: int, rounds: int, library: Path | None) -> None:
    """On each rank."""
    from mpi4py import MPI

    fine_timers()
    comm = connect(ranks)
    barriers: dict[str, Barrier] = {"ours": comm.barrier, "MPI_Barrier": MPI.COMM_WORLD.Barrier}
    if library is not None:
        barriers |= {f"C, {look_out * 1e3:.0f} ms": in_c(comm, library, look_out) for look_out in LOOK_OUTS}
    for way, sleeps in delays(ranks, rounds).items():
        found: dict[str, list[float]] = {name: [] for name in barriers}
        for begin in range(0, rounds, BLOCK):
            for name, barrier in barriers.items():
                found[name] += costs(comm, barrier, sleeps[begin : begin + BLOCK])
        if comm.rank == 0:
            medians = {name: statistics.median(seconds) * 1e3 for name, seconds in found.items()}
            mpi = medians["MPI_Barrier"]
            cells = [f"{name} {cost:.3f} ms ({cost / mpi:.2f})" for name, cost in medians.items()]
            print(f"{ranks} ranks  {way:<14}  " + "  ".join(cells), flush=True)
    busy = {name: cpu(comm, barrier) * 1e3 for name, barrier in barriers.items()}
    if comm.rank == 0:
        print(
            f"{ranks} ranks  CPU of a wait of 50 ms:  "
            + "  ".join(f"{name} {own:.2f} ms" for name, own in busy.items())
        )


def main() -> None:
    """Launch the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8", metavar="N[,N...]")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank-of", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank_of:
        measure(asked.rank_of, asked.rounds, asked.library)
        return
    site = launch_site.detect_site(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "meeting.so"
        if asked.floor:
            source = str(Path(__file__).with_name("meeting.c"))
            subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), source], check=True)
        floor = ("--library", str(library)) if asked.floor else ()
        for ranks in map(int, asked.ranks.split(",")):
            command = (sys.executable, __file__, "--rank-of", str(ranks), "--rounds", str(asked.rounds), *floor)
            job = launchers.LaunchRequest(ranks, 1, command, virtual=True)
            env = launch_env(job, site, os.environ)
            argv = launchers.LAUNCHERS["mpirun"](replace(job, env=env), site)
            subprocess.run(argv, env=os.environ | env, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
