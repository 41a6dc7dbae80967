"""Whether the number of reading threads that a reader chooses is as good as the best fixed one.

    python scripts/measure/reading_ahead.py [--workloads hepcnnb,cdb] [--bandwidths 100MB/s] [--more request=5ms] ...

Four virtual nodes share an emulated file system. In each cell (workload, bandwidth, latency of an open) the ranks read
the same batches ahead with the default, and with each fixed number of threads, in turn, and meet after each step. A
step computes for as long as makes the job ask for 80 % of the bandwidth, and at least 20 ms: then a delayed batch
costs most. Printed are median seconds, and how much longer the default takes than the best fixed number.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.harness.cluster import mpi
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.ground.defaults import MOST_THREADS, STAGING_BYTES
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import open_planned
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import SampleView, Tally, plan_batches
from dlio_bench.harness.storage.pfs.process import EmulatedAccess, emulation_of
from dlio_bench.harness.storage.pfs.spec import PROCESS, PfsSpec, parse_spec

ROOT = Path(__file__).resolve().parents[2]
NODES, ASKED_FOR, LEAST_STEP, TRIAL = 4, 0.8, 0.02, 1.5
# name -> workload, variant, tiny, files, samples of a batch
DATA = {
    "hepcnnb": ("hepcnnb", "224", False, 1, 16),
    "cdb": ("cdb", "cori", False, 12, 1),
    "raw": ("imagenet", "raw", False, 640, 16),
    "raw-tiny": ("imagenet", "raw", True, 640, 16),
}


def dataset_of(name: str, folder: Path) -> Dataset:
    """The dataset of a row of DATA, made if it is not there."""
    workload, variant, tiny, files, _ = DATA[name]
    if not (folder / name).exists():
        return generate(WORKLOADS[workload].variants[variant](tiny, RANDOM), files, folder / name, seed=1, workers=2)
    return open_dataset(folder / name)


@contextmanager
def accesses(comm: Comm, spec: PfsSpec, dataset: Dataset, nodes: int) -> Iterator[EmulatedAccess]:
    """How this rank reads: through an emulation that rank 0 starts for all."""
    node = comm.rank * nodes // comm.size
    if comm.rank:
        mounts = comm.allgather(())[0]
        yield EmulatedAccess(spec, dataset, mounts[node], node)
        comm.barrier()
        return
    with emulation_of(spec, dataset, nodes) as emulation:
        mounts = comm.allgather(emulation.mounts)[0]
        yield EmulatedAccess(spec, dataset, mounts[node], node)
        comm.barrier()


def trial(comm: Comm, view: SampleView, batch: int, steps: int, step_seconds: float, threads: int | None) -> float:
    """Seconds of the job for some steps. threads: None for the default."""
    samples, generator = view.dataset.training_samples, np.random.default_rng(comm.rank)
    ids = [generator.permutation(samples)[:batch] for _ in range(steps)]
    resources = Resources(
        threads or 1,
        max(STAGING_BYTES, 3 * batch * int(view.sizes(ids[0]).max())),
        step_seconds=step_seconds,
        most_threads=threads or MOST_THREADS,
    )
    reader, tally = open_planned(find("double-buffer"), view, [(0, ids)], resources, RankContext(comm)), Tally()
    plan = plan_batches(view, [(0, ids)])
    with reader.session(plan, tally) as batches:
        comm.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            next(batches)
            time.sleep(step_seconds)
            comm.barrier()
        return time.perf_counter() - began


def cells(comm: Comm, asked: argparse.Namespace) -> None:
    """A rank's side: all cells, one after the other."""
    counts = [None, *map(int, asked.threads.split(","))]
    for name in asked.workloads.split(","):
        whole, batch = open_dataset(asked.data / name), DATA[name][-1]
        for bandwidth in asked.bandwidths.split(","):
            for latency in asked.opens.split(","):
                text = f"bandwidth={bandwidth},open={latency}" + (f",{asked.more}" if asked.more else "")
                spec = replace(parse_spec(text), via=PROCESS)
                with accesses(comm, spec, whole, comm.size // asked.per_node) as access:
                    workload = WORKLOADS[DATA[name][0]]
                    view = SampleView(replace(whole, access=access), workload.view)
                    size = batch * int(view.sizes(np.arange(whole.training_samples)).mean())
                    step = max(comm.size * size / (ASKED_FOR * (spec.bandwidth or 1)), LEAST_STEP)
                    steps = int(np.clip(round(TRIAL / step), 5, 75))
                    trial(comm, view, batch, min(steps, 5), step, None)  # untimed: the files come into the page cache
                    times = [
                        [trial(comm, view, batch, steps, step, one) for one in counts] for _ in range(asked.trials)
                    ]
                if comm.rank == 0:
                    report(
                        f"{name:8} {text}",
                        steps * step,
                        [statistics.median(column) for column in zip(*times, strict=True)],
                    )


def report(cell: str, bound: float, medians: list[float]) -> None:
    """Print the line of a cell: the bound, the default and each fixed number of threads."""
    best = min(medians[1:])
    shown = " ".join(f"{seconds:6.3f}" for seconds in medians)
    print(f"{cell:60} bound {bound:6.3f} | {shown} | {100 * (medians[0] / best - 1):+6.1f} %", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(DATA))
    parser.add_argument("--bandwidths", default="100MB/s,400MB/s,2GB/s")
    parser.add_argument("--opens", default="0ms,1ms,5ms,20ms")
    parser.add_argument("--more", default="", help="further words of the emulated file system")
    parser.add_argument("--threads", default="1,2,4,8,32", help="fixed numbers")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--per-node", type=int, default=1, help="ranks of a virtual node")
    parser.add_argument("--data", type=Path, help="where datasets are kept")
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ranks:
        cells(mpi.connect(asked.ranks), asked)
        return
    sys.path.insert(0, str(ROOT))
    from tests.ranks import mpirun

    with tempfile.TemporaryDirectory() as name:
        data = asked.data or Path(name)
        for one in asked.workloads.split(","):
            dataset_of(one, data)
        print(f"{'cell':60} {'':12} | default, then threads {asked.threads} | default over best")
        ranks = NODES * asked.per_node
        argv, env = mpirun(ranks, (sys.executable, __file__, *sys.argv[1:], "--ranks", str(ranks), "--data", str(data)))
        with subprocess.Popen(argv, env=os.environ | env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
            for line in started.stdout or ():
                print(line.rpartition("<stdout>: ")[2], end="", flush=True)
        sys.exit(started.returncode)


if __name__ == "__main__":
    main()
