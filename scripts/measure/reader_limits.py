"""Where the time of warm readers goes, beside preadv that does nothing else, on the datasets of `bench-readers`:

    python scripts/measure/reader_limits.py [WORKLOAD...] [--ranks 2] [--trials 5]    (after dlio-bench bench-readers)

`raw`: one thread a rank, every call prepared, in shuffled or sequential order, into one slot or as many as `prefetch`
has; `+ check`: the same through the run's own loop, which checks what it gets. Medians; all contenders in turn. CPU is
that of a step, over all ranks.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks import registry
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.harness.cluster import launch_site, launchers
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.mpi import connect
from dlio_bench.harness.cluster.start import launch_env
from dlio_bench.harness.commands.run.asked.sizing import trial_size
from dlio_bench.harness.commands.run.measured import loop
from dlio_bench.harness.commands.run.measured.rank import SWITCH_SECONDS
from dlio_bench.harness.ground.defaults import STAGING_BYTES
from dlio_bench.harness.ground.folders import cache_folder
from dlio_bench.harness.plan.orders import ORDERS, Shape
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import Planned, SampleView, Tally, largest, plan_batches, touch_buffer
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.compute import fine_timers
from dlio_bench.harness.training.trainer import Emulated

Contender = Callable[[], tuple[float, float]]  # seconds of the job, CPU seconds of this rank
ORDERED = {"shuffled": "global-shuffle", "sequential": "sequential"}


def raw(view: SampleView, plan: Sequence[Planned], slots: int) -> Callable[[], Iterator[Batch]]:
    """The batches of a plan by preadv, files open and calls prepared."""
    buffers = [touch_buffer(largest(plan)) for _ in range(slots)]
    handles: dict[int, int] = {}
    calls: list[list[tuple[int, list[memoryview], int]]] = []
    for step, batch in enumerate(plan):
        files, offsets, stored, _ = view.dataset.locate(batch.ids, view.fields)
        memory, at = memoryview(buffers[step % slots]), 0
        calls.append([])
        for file, starts, lengths in zip(files.tolist(), offsets.tolist(), stored.tolist(), strict=True):
            if file not in handles:
                handles[file] = os.open(view.dataset.path(file), os.O_RDONLY | os.O_CLOEXEC)
            for start, length in zip(starts, lengths, strict=True):
                calls[-1].append((handles[file], [memory[at : at + length]], start))
                at += length

    def batches() -> Iterator[Batch]:
        for step, batch in enumerate(plan):
            for call in calls[step]:
                os.preadv(*call)
            yield Batch(batch.ids, (Block(buffers[step % slots][: batch.bytes], batch.starts),))

    return batches


def bare(comm: Comm, batches: Callable[[], Iterator[Batch]]) -> tuple[float, float]:
    """Take all batches and do nothing with them."""
    started, cpu = time.perf_counter(), time.process_time()
    comm.barrier()
    for _ in batches():
        pass
    comm.barrier()
    return time.perf_counter() - started, time.process_time() - cpu


def trained(
    comm: Comm, plan: Sequence[Planned], session: Callable[[], AbstractContextManager[Iterator[Batch]]]
) -> tuple[float, float]:
    """Take all batches through the loop of `run`."""
    ids, log = [batch.ids for batch in plan], StepLog.empty(len(plan), len(plan[0].ids))
    with session() as batches:
        cpu = time.process_time()
        elapsed = loop.run_steps(
            comm, batches, ids, log, trainer=Emulated(), sync="none", ordered=True,
            starts=[batch.starts for batch in plan],
        )  # fmt: skip
        return elapsed.enclosing, time.process_time() - cpu


def contenders(comm: Comm, view: SampleView, batch: int) -> tuple[dict[str, Contender], int, int]:
    """All of them by name; bytes and steps of this rank's epoch."""
    shape = Shape(view.dataset.training_samples, comm.size, batch)
    plans = {name: plan_batches(view, [(0, list(ORDERS[name](shape, comm.rank, 0, 7)))]) for name in ORDERED.values()}
    most = max(map(largest, plans.values()))
    staging = max(STAGING_BYTES, 3 * most)
    made: dict[str, Contender] = {}
    for name, order, slots in (
        ("raw, shuffled", "shuffled", 1),
        ("raw, sequential", "sequential", 1),
        ("raw, shuffled, all slots", "shuffled", min(16, staging // most)),
    ):
        plan = plans[ORDERED[order]]
        batches = raw(view, plan, slots)
        made[name] = lambda batches=batches: bare(comm, batches)  # type: ignore[misc]
        made[f"{name} + check"] = lambda batches=batches, plan=plan: trained(  # type: ignore[misc]
            comm, plan, lambda: nullcontext(batches())
        )
    for name in ("naive", "shuffled", "prefetch"):
        policy, plan = find(name), plans[find(name).order]
        reader = open_reader(policy, view, Resources(32, staging, most, tiers=Tiers(ram=staging)), RankContext(comm))
        made[name] = lambda reader=reader, plan=plan: trained(  # type: ignore[misc]
            comm, plan, lambda: reader.session(plan, Tally())
        )
    return made, sum(one.bytes for one in plan), len(plan)


def measure(workload: str, comm: Comm, trials: int) -> None:
    """On each rank."""
    fine_timers()
    sys.setswitchinterval(SWITCH_SECONDS)
    found = registry.find(workload)
    (folder,) = (cache_folder(None) / "datasets").glob(f"{workload}-{found.expected.variant}-random-*")
    view = SampleView(open_dataset(Path(folder)), found.view)
    batch = trial_size(view.dataset.training_samples, ranks=comm.size, published_batch=found.batch).batch
    made, size, steps = contenders(comm, view, batch)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    names = list(made)
    for trial in range(-1, trials):  # the first is a warm-up
        turn = trial % len(names)
        for name in names[turn:] + names[:turn]:
            comm.barrier()
            times[name] = [*times[name][: max(trial, 0)], made[name]()]
    everybody = comm.allgather((times, size, steps))
    if comm.rank == 0:
        print(f"{workload}, batch {batch}, {comm.size} ranks")
        least = None
        for name in names:
            seconds = statistics.median(min(own[name][n][0] for own, _, _ in everybody) for n in range(trials))
            cpu = statistics.median(sum(own[name][n][1] for own, _, _ in everybody) for n in range(trials)) / steps
            rate = sum(own for _, own, _ in everybody) / seconds
            least = least or (rate, cpu)
            ratios = f"{rate / 1e9:6.2f} GB/s {rate / least[0]:5.2f}   CPU {cpu * 1e6:7.0f} us {least[1] / cpu:5.2f}"
            print(f"  {name:<34}{ratios}", flush=True)


def main() -> None:
    """Launch the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(registry.WORKLOADS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--is-rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.is_rank:
        comm = connect(asked.ranks)
        for workload in asked.workloads:
            measure(workload, comm, asked.trials)
        return
    site = launch_site.detect_site(os.environ)
    job = launchers.LaunchRequest(asked.ranks, 1, (sys.executable, __file__, "--is-rank", *sys.argv[1:]), virtual=True)
    env = launch_env(job, site, os.environ)
    argv = launchers.LAUNCHERS["mpirun"](replace(job, env=env), site)
    subprocess.run(argv, env=os.environ | env, check=True)


if __name__ == "__main__":
    main()
