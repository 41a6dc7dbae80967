"""What one rank of a comparison does: every contender in turn, each on a warm cache and under one clock."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.batches import Batch
from dlio_bench.benchmarks import registry
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import Caller, run_measuring_rank
from dlio_bench.harness.commands.bench_readers import job as names
from dlio_bench.harness.commands.bench_readers import yardsticks
from dlio_bench.harness.commands.bench_readers.job import Job
from dlio_bench.harness.commands.bench_readers.yardsticks import NotMeasured, Work
from dlio_bench.harness.commands.run.measured import loop
from dlio_bench.harness.commands.run.measured.consumer import find_damage, require_same_set
from dlio_bench.harness.commands.run.measured.rank import SWITCH_SECONDS
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.plan.orders import ORDERS, Shape
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers import torch_loader, web_loader, web_shards
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.registry import open_planned
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import Planned, SampleView, Tally, plan_batches
from dlio_bench.harness.storage import cache
from dlio_bench.harness.storage.direct import alignment_of
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.compute import fine_timers
from dlio_bench.harness.training.trainer import Emulated

SHARDS = "buffered-shuffle"  # each rank has shards of its own
OURS = {names.PREFETCH: "prefetch", names.PREFETCH_CRC: "prefetch", names.SHUFFLED: "shuffled", names.NAIVE: "naive"}


class TimedEpoch(Struct, frozen=True):
    """One contender's epoch on one rank: seconds around both barriers, CPU seconds, and what it delivered."""

    seconds: float
    cpu: float
    bytes: int
    samples: int


class Contender(Struct, frozen=True):
    """run: reads this rank's epoch once, under the clock. content: delivers it once more, to be compared byte by byte.

    checked: what was compared of its samples when all is done.
    """

    run: Callable[[], TimedEpoch]
    content: Callable[[], AbstractContextManager[Iterator[Batch]]] | None
    checked: str


def measure(job: Job, comm: Comm, caller: Caller) -> dict[str, Any]:
    """Run all contenders `trials` times on this rank: {times, missing, checked, resident_share} on rank 0.

    Elsewhere {}. Then those that deliver batches do so once more, and every byte is compared. DataError.
    """
    fine_timers()
    sys.setswitchinterval(SWITCH_SECONDS)
    dataset = open_dataset(Path(job.dataset))
    form = SampleView(dataset, registry.find(job.workload).of(dataset.manifest.variant).view)
    plans = {order: _plan(form, job, job.ranks, comm.rank, order) for order in ("sequential", "global-shuffle")}
    files = range(len(dataset.training_files))
    paths = [dataset.path(file) for file in files]
    if web_loader.is_installed() and names.WEBDATASETS.keys() & set(job.contenders):
        plans[SHARDS] = _plan(form, job, job.ranks, comm.rank, SHARDS)
        paths += web_shards.paths(dataset, form.fields, files)
    share = paths[comm.rank :: comm.size]
    residency = 1.0
    times: dict[str, list[TimedEpoch]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name in job.contenders:
            try:
                contenders[name] = _prepare(name, job, form, plans, comm, stack)
            except NotMeasured as reason:
                missing[name] = str(reason)
        for trial in range(-1, job.trials):  # the first is a warm-up: imports, first touches, tuning
            for name, contender in contenders.items():
                caller.show_activity(f"{name}  trial {trial + 1}/{job.trials}")
                comm.barrier()
                if job.options.io != DIRECT and cache.residency(share).share < 1:
                    cache.fill(share)
                comm.barrier()
                residency = min(residency, cache.residency(share).share)
                timed = contender.run()
                if trial >= 0:
                    times.setdefault(name, []).append(timed)
        for name, contender in contenders.items():
            if contender.content is not None:
                caller.show_activity(f"{name}  verifying content")
                verify(name, contender.content, form)
    gathered = comm.gather(times)
    shares = comm.allgather(residency)
    if gathered is not None:
        rows = {name: [_job_wide([rank[name][n] for rank in gathered]) for n in range(job.trials)] for name in times}
        checked = {name: contender.checked for name, contender in contenders.items()}
        return {"times": rows, "missing": missing, "checked": checked, "resident_share": min(shares)}
    return {}


def verify(name: str, session: Callable[[], AbstractContextManager[Iterator[Batch]]], form: SampleView) -> None:
    """Compare every byte that a contender delivers. DataError naming the first field that is not as generated."""
    with session() as batches:
        for batch in batches:
            if lines := find_damage(batch, form):
                raise DataError(f"{name} delivered other bytes than were generated. {lines[0]}")


def _plan(form: SampleView, job: Job, ranks: int, rank: int, order: str) -> list[Planned]:
    """What a rank of `ranks` reads in an epoch."""
    files = form.dataset.training_files
    bounds = np.array([*(entry.first for entry in files), form.dataset.training_samples]) if order == SHARDS else None
    shape = Shape(form.dataset.training_samples, ranks, job.batch, bounds)
    return plan_batches(form, [(0, list(ORDERS[order](shape, rank, 0, job.seed)))])


def _job_wide(ranks: list[TimedEpoch]) -> dict[str, float]:
    """The least interval around both barriers is the job's time (McCalpin 2019); the rest are sums."""
    return {
        "seconds": min(timed.seconds for timed in ranks),
        "cpu": sum(timed.cpu for timed in ranks),
        "bytes": sum(timed.bytes for timed in ranks),
        "samples": sum(timed.samples for timed in ranks),
    }


def _prepare(
    name: str, job: Job, form: SampleView, plans: dict[str, list[Planned]], comm: Comm, stack: ExitStack
) -> Contender:
    """Ready to read this rank's epoch. NotMeasured."""
    shuffled, sequential = plans["global-shuffle"], plans["sequential"]
    # one epoch reads nothing twice, so that `prefetch` has tiers to make and nothing to keep in them
    tiers = Tiers(ram=job.staging_bytes)
    alignment = alignment_of(form.dataset) if job.options.io == DIRECT else None
    options = replace(job.options, check_crc=job.options.check_crc or name == names.PREFETCH_CRC)
    resources = Resources(job.threads, job.staging_bytes, options=options, tiers=tiers, alignment=alignment)
    if name in names.TORCHES and not torch_loader.is_installed():
        raise NotMeasured("PyTorch is not installed (pip install 'dlio-bench[torch]')")
    if name in names.WEBDATASETS and not web_loader.is_installed():
        raise NotMeasured("WebDataset is not installed (pip install 'dlio-bench[webdataset]')")
    if row := OURS.get(name) or (name in names.TORCHES and "torch") or (name in names.WEBDATASETS and "webdataset"):
        policy = find(row)
        resources = replace(resources, threads=(names.TORCHES | names.WEBDATASETS).get(name, job.threads))
        plan = plans[policy.order]
        reader = open_planned(policy, form, [(0, [batch.ids for batch in plan])], resources, RankContext(comm))
        return _trainer_contender(
            lambda: reader.session(plan, Tally()),
            plan,
            job,
            comm,
            lambda: reader.processes,
            ordered=policy.order_known,
        )
    enter = stack.enter_context
    if name == names.PLAIN:
        return _trainer_contender(
            lambda: nullcontext(yardsticks.plain_batches(form, sequential)), sequential, job, comm
        )
    if raw := names.raws(job.ranks).get(name):
        plan = _plan(form, job, raw.ranks, comm.rank, "global-shuffle") if comm.rank < raw.ranks else []
        return _pipeline_contender(enter(yardsticks.raw(form, plan, raw.threads, alignment)), plan, comm)
    if how := names.H5PYS.get(name):
        return _pipeline_contender(enter(yardsticks.h5py(form, shuffled, how)), shuffled, comm)
    if how_dali := names.DALIS.get(name):
        drain = enter(yardsticks.dali(form, shuffled, *how_dali))
        return replace(_pipeline_contender(drain, shuffled, comm), checked=names.NUMBER)
    assert name in names.TFDATAS
    files = yardsticks.share_of_files(form, comm.rank, comm.size)
    timed = _pipeline_contender(enter(yardsticks.tfdata(form, files, name, job.batch)), [], comm)
    whole = [file for number in files for file in [form.dataset.training_files[number]]]

    def run_epoch() -> TimedEpoch:
        epoch = timed.run()
        return TimedEpoch(
            epoch.seconds, epoch.cpu, sum(file.bytes for file in whole), sum(file.samples for file in whole)
        )

    return Contender(run_epoch, None, names.NUMBER)


def _trainer_contender(
    session: Callable[[], AbstractContextManager[Iterator[Batch]]],
    plan: list[Planned],
    job: Job,
    comm: Comm,
    processes: Callable[[], Sequence[int]] = tuple,
    *,
    ordered: bool = True,
) -> Contender:
    """The run's own loop: ids compared with the plan (not `ordered`: as a set), 64 bytes of every sample taken."""
    steps = [batch.ids for batch in plan]
    size, samples = sum(batch.bytes for batch in plan), sum(map(len, steps))

    def run_epoch() -> TimedEpoch:
        log = StepLog.empty(len(plan), job.batch)
        with session() as batches:
            cpu = _cpu_seconds(processes())
            elapsed = loop.run_steps(
                comm,
                batches,
                steps,
                log,
                trainer=Emulated(),
                sync="none",
                ordered=ordered,
                starts=[batch.starts for batch in plan],
            )
            cpu = _cpu_seconds(processes()) - cpu
        if not ordered:
            require_same_set(log.ids, np.array(steps))
        return TimedEpoch(elapsed.enclosing, cpu, size, samples)

    return Contender(run_epoch, session, names.EVERY_BYTE)


def _cpu_seconds(children: Sequence[int]) -> float:
    """Processor time of this process and of live children: proc(5), fields 14 and 15, in ticks of 10 ms."""
    ticks = 0
    for process in children:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _pipeline_contender(work: Work, plan: list[Planned], comm: Comm) -> Contender:
    size, samples = sum(batch.bytes for batch in plan), sum(len(batch.ids) for batch in plan)

    def run_epoch() -> TimedEpoch:
        cpu, started = time.process_time(), time.perf_counter()
        comm.barrier()
        work()
        comm.barrier()
        return TimedEpoch(time.perf_counter() - started, time.process_time() - cpu, size, samples)

    return Contender(run_epoch, None, names.NOTHING)


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(Job, measure))
