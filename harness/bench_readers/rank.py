"""What one rank of a comparison does: every contender in turn, each on a warm cache and under one clock."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlio_bench.batches import Batch
from dlio_bench.benchmarks import registry
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.harness.bench_readers import yardsticks
from dlio_bench.harness.bench_readers.job import (
    H5PYS,
    NAIVE,
    PLAIN,
    PREFETCH,
    PREFETCH_CRC,
    SHUFFLED,
    TFDATAS,
    Job,
    raws,
)
from dlio_bench.harness.bench_readers.yardsticks import NotMeasured, Work
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import require_same_code, run_measuring_rank, say
from dlio_bench.harness.plan.orders import ORDERS, Shape
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.registry import RankContext, Resources, opened
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.readers.session import Planned, Tally, planned
from dlio_bench.harness.run.measured import loop
from dlio_bench.harness.run.measured.rank import SWITCH_SECONDS
from dlio_bench.harness.storage import cache
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.compute import fine_timers
from dlio_bench.harness.training.trainer import Emulated

OURS = {PREFETCH: "prefetch", PREFETCH_CRC: "prefetch", SHUFFLED: "shuffled", NAIVE: "naive"}


@dataclass(frozen=True)
class Timed:
    """One contender's epoch on one rank: seconds around both barriers, CPU seconds, and what it delivered."""

    seconds: float
    cpu: float
    bytes: int
    samples: int


def measure(job: Job, comm: Comm, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run all contenders `trials` times on this rank: {times, missing, resident_share} on rank 0, elsewhere {}."""
    fine_timers()
    sys.setswitchinterval(SWITCH_SECONDS)
    require_same_code(comm, job.code_digest)
    dataset = open_dataset(Path(job.dataset))
    form = SampleView(dataset, registry.find(job.workload).view)
    plans = {order: _plan(form, job, job.ranks, comm.rank, order) for order in ("sequential", "global-shuffle")}
    paths = [dataset.path(file) for file in range(len(dataset.training_files))]
    share = paths[comm.rank :: comm.size]
    residency = 1.0
    times: dict[str, list[Timed]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        contenders = {}
        for name in job.contenders:
            try:
                contenders[name] = _prepare(name, job, form, plans, comm, stack)
            except NotMeasured as reason:
                missing[name] = str(reason)
        for trial in range(-1, job.trials):  # the first is a warm-up: imports, first touches, tuning
            for name, run in contenders.items():
                if comm.rank == 0:
                    tell({"event": "trial", "contender": name, "trial": trial})
                comm.barrier()
                if cache.residency(share).share < 1:
                    cache.fill(share)
                comm.barrier()
                residency = min(residency, cache.residency(share).share)
                timed = run()
                if trial >= 0:
                    times.setdefault(name, []).append(timed)
    gathered = comm.gather(times)
    shares = comm.allgather(residency)
    if gathered is not None:
        rows = {name: [_job_wide([rank[name][n] for rank in gathered]) for n in range(job.trials)] for name in times}
        return {"times": rows, "missing": missing, "resident_share": min(shares)}
    return {}


def _plan(form: SampleView, job: Job, ranks: int, rank: int, order: str) -> list[Planned]:
    """What a rank of `ranks` reads in an epoch."""
    shape = Shape(form.dataset.training_samples, ranks, job.batch)
    return planned(form, [(0, list(ORDERS[order](shape, rank, 0, job.seed)))])


def _job_wide(ranks: list[Timed]) -> dict[str, float]:
    """The least interval around both barriers is the job's time (McCalpin 2019); the rest are sums."""
    return {
        "seconds": min(timed.seconds for timed in ranks),
        "cpu": sum(timed.cpu for timed in ranks),
        "bytes": sum(timed.bytes for timed in ranks),
        "samples": sum(timed.samples for timed in ranks),
    }


def _prepare(
    name: str, job: Job, form: SampleView, plans: dict[str, list[Planned]], comm: Comm, stack: ExitStack
) -> Callable[[], Timed]:
    """A call that reads this rank's epoch once. NotMeasured."""
    shuffled, sequential = plans["global-shuffle"], plans["sequential"]
    # one epoch reads nothing twice, so that `prefetch` has tiers to make and nothing to keep in them
    tiers = Tiers(ram=job.staging_bytes)
    resources = Resources(job.threads, job.staging_bytes, check_crc=name == PREFETCH_CRC, tiers=tiers)
    if name in OURS:
        policy = find(OURS[name])
        plan = plans[policy.order]
        reader = opened(policy, form, [(0, [batch.ids for batch in plan])], resources, RankContext(comm))
        return _trained(lambda: reader.session(plan, Tally()), plan, job, comm)
    enter = stack.enter_context
    if name == PLAIN:
        return _trained(lambda: nullcontext(yardsticks.plain(form, sequential)), sequential, job, comm)
    if raw := raws(job.ranks).get(name):
        plan = _plan(form, job, raw.ranks, comm.rank, "global-shuffle") if comm.rank < raw.ranks else []
        return _theirs(enter(yardsticks.raw(form, plan, raw.threads)), plan, comm)
    if how := H5PYS.get(name):
        return _theirs(enter(yardsticks.h5py(form, shuffled, how)), shuffled, comm)
    assert name in TFDATAS
    files = yardsticks.share_of_files(form, comm.rank, comm.size)
    timed = _theirs(enter(yardsticks.tfdata(form, files, name, job.batch)), [], comm)
    whole = [file for number in files for file in [form.dataset.training_files[number]]]

    def run() -> Timed:
        epoch = timed()
        return Timed(epoch.seconds, epoch.cpu, sum(file.bytes for file in whole), sum(file.samples for file in whole))

    return run


def _trained(
    session: Callable[[], AbstractContextManager[Iterator[Batch]]], plan: list[Planned], job: Job, comm: Comm
) -> Callable[[], Timed]:
    """The run's own loop: ids compared with the plan, 64 bytes of every sample taken."""
    steps = [batch.ids for batch in plan]
    size, samples = sum(batch.bytes for batch in plan), sum(map(len, steps))

    def run() -> Timed:
        log = StepLog.empty(len(plan), job.batch)
        with session() as batches:
            cpu = time.process_time()
            elapsed = loop.run(
                comm,
                batches,
                steps,
                [False] * len(steps),
                log,
                trainer=Emulated(),
                sync="none",
                ordered=True,
                at_epoch=lambda: None,
                starts=[batch.starts for batch in plan],
            )
            cpu = time.process_time() - cpu
        return Timed(elapsed.enclosing, cpu, size, samples)

    return run


def _theirs(work: Work, plan: list[Planned], comm: Comm) -> Callable[[], Timed]:
    size, samples = sum(batch.bytes for batch in plan), sum(len(batch.ids) for batch in plan)

    def run() -> Timed:
        cpu, started = time.process_time(), time.perf_counter()
        comm.barrier()
        work()
        comm.barrier()
        return Timed(time.perf_counter() - started, time.process_time() - cpu, size, samples)

    return run


def _start(folder: Path) -> tuple[int, Callable[[Comm], dict[str, Any]]]:
    job = Job.load(folder)
    return job.ranks, lambda comm: measure(job, comm, say)


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(_start))
