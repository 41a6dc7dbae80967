r"""How a rank gets samples from another whose trainer does not help: MPI_Get under lock_all, or our own peers.py.

Start with two ranks, on one host or on two that this machine plays and that a shaped link joins (as root):

    mpirun -n 2 python scripts/measure/serve_samples.py [--compute asleep|python|numpy] [--seconds 3]

    tests/cluster/virtual-cluster up /tmp/two 2
    for host in node1 node2; do tests/cluster/virtual-cluster shape /tmp/two $host 1gbit; done
    export PRTE_MCA_plm_ssh_agent=/tmp/two/ssh OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=eth0
    tests/cluster/virtual-cluster on /tmp/two node1 mpirun --allow-run-as-root --host node1:1,node2:1 \
        --map-by ppr:1:node --bind-to none -n 2 -x PATH python scripts/measure/serve_samples.py
    tests/cluster/virtual-cluster down /tmp/two

Rank 0 asks; rank 1 serves from a file in /dev/shm while its trainer sleeps, or computes. Prints, for each way and size
of a sample, the rate, the median and the worst time of an ask, the CPU time of the asking rank, and that of the serving
rank above what its trainer takes alone, and how many steps its trainer makes for each that it makes alone. An ask whose
worst time is that of the phase was answered only when the serving rank came back to MPI.
"""

import argparse
import contextlib
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.mpi import connect
from dlio_bench.harness.cluster.peers import Peers, Serving

ASKS = {"115 KB": (115_000, 1), "16 x 115 KB": (115_000, 16), "6 MB": (6_000_000, 1)}  # sample bytes, samples an ask
STORE = 192_000_000  # bytes: more than a cache holds


def train(how: str, seconds: float) -> tuple[float, float]:
    """What a trainer does between two asks for data, without a word to MPI: (CPU seconds, steps) a second."""
    numbers, steps = np.random.default_rng(1).random((400, 400)), 0
    busy, began = time.process_time(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        steps += 1
        if how == "asleep":
            time.sleep(0.25)
        elif how == "python":
            sum(number * number for number in range(10_000))
        else:
            numbers @ numbers
    wall = time.perf_counter() - began
    return (time.process_time() - busy) / wall, steps / wall


def asks(get: Callable[[list[int]], None], size: int, batch: int, seconds: float) -> tuple[float, list[float], float]:
    """(bytes/s, seconds of each ask, cores) of asking one after another."""
    draws = np.random.default_rng(2)
    taken: list[float] = []
    busy, began = time.process_time(), time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        get(draws.integers(STORE // size, size=batch).tolist())
        taken.append(time.perf_counter() - now)
    wall = time.perf_counter() - began
    return len(taken) * size * batch / wall, taken, (time.process_time() - busy) / wall


def main() -> None:
    """Measure both ways, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compute", choices=("asleep", "python", "numpy"), default="asleep")
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    world = MPI.COMM_WORLD
    serving_rank, token = world.rank == 1, world.bcast(os.urandom(16))
    place = interfaces.serving(connect(2))[world.rank]

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile(dir="/dev/shm"))
        os.posix_fallocate(file.fileno(), 0, STORE)
        store = mmap.mmap(file.fileno(), STORE)
        if serving_rank:
            store[:] = bytes(STORE)
        window = MPI.Win.Create(store if serving_rank else None, comm=world)
        window.Lock_all()
        sizes = {"size": 0}
        serving = stack.enter_context(
            contextlib.closing(
                Serving(
                    lambda sample: (file.fileno(), sample * sizes["size"], sizes["size"]),
                    token=token,
                    host=place.address,
                )
            )
        )
        peers = stack.enter_context(contextlib.closing(Peers(world.allgather(serving.address), token)))
        outs = [memoryview(bytearray(6_000_000)) for _ in range(16)]

        def get(samples: list[int]) -> None:
            for sample, out in zip(samples, outs, strict=False):
                window.Get((out[: sizes["size"]], MPI.BYTE), 1, (sample * sizes["size"], sizes["size"], MPI.BYTE))
            window.Flush(1)

        def fetch(samples: list[int]) -> None:
            found = peers.fetch(1, samples, [out[: sizes["size"]] for out in outs[: len(samples)]])
            assert all(found), "the serving rank is gone"

        for way, ask in {"MPI_Get": get, "peers": fetch}.items():
            for name, (size, batch) in ASKS.items():
                sizes["size"] = size
                if serving_rank:
                    alone = train(arguments.compute, 1.0)
                    world.Barrier()  # connections are made now, with both ranks in MPI
                    world.Barrier()
                    world.send((alone, train(arguments.compute, arguments.seconds)), 0)
                else:
                    world.Barrier()
                    ask(list(range(batch)))
                    world.Barrier()
                    done, taken, cores = asks(ask, size, batch, arguments.seconds)
                    alone, among = world.recv(source=1)
                    print(
                        f"{way:8} {name:12} {done / 1e6:8.1f} MB/s  median {statistics.median(taken) * 1e3:8.2f} ms  "
                        f"worst {max(taken) * 1e3:8.2f} ms  asker {cores / done * 1e9:6.3f} CPU s/GB  "
                        f"server {(among[0] - alone[0]) / done * 1e9:+7.3f} CPU s/GB, "
                        f"steps {among[1] / alone[1]:5.2f} of alone",
                        flush=True,
                    )
        window.Unlock_all()
        world.Barrier()


if __name__ == "__main__":
    main()
