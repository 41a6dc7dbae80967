"""Before a run: how long its epochs will take, from a description of the machine and the run's own plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import STAGING, System, Tier
from dlio_bench.harness.plan.orders import Ids, find_order
from dlio_bench.harness.plan.policies import Policy, order_of
from dlio_bench.harness.readers.ahead import FEWEST_SLOTS, MOST_SLOTS
from dlio_bench.harness.readers.form import Form
from dlio_bench.harness.readers.session import largest, planned
from dlio_bench.harness.readers.shares import SHARES, Share
from dlio_bench.harness.run.choice import executed, policy
from dlio_bench.harness.run.chunks import Cut, chunks, handles_kept, is_readable
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.run.site import shape_of
from dlio_bench.harness.simulator import runtime
from dlio_bench.harness.simulator.devices import FileSystem, Memory, moved
from dlio_bench.harness.simulator.kernel import Clock, Meeting, Process
from dlio_bench.harness.storage import tier
from dlio_bench.harness.storage.pfs.spec import describe, from_dict

SCHEMA = "dlio-bench/prediction/1"
MOST_READS = 600_000  # that are simulated for a reader; beyond it, the first steps of the first epochs stand for all
LEAST_EPOCHS = 3  # the first, and two that are alike
DIRTY = 0.1  # of memory: vm.dirty_background_ratio, whose default is 10 % (Linux, admin-guide/sysctl/vm.rst)
DELIVERIES = ("on demand", "ahead")


@dataclass(frozen=True)
class Plans:
    """What every rank reads: [rank][epoch] int64 [steps, batch]; `steps`, `epochs`: those of the run, all of them."""

    ids: list[list[Ids]]
    steps: int
    epochs: int

    @property
    def simulated_steps(self) -> int:
        """Steps of an epoch that are simulated."""
        return len(self.ids[0][0])


def predict(job: Job, dataset: Dataset, system: System, node_memory: int) -> list[dict[str, Any]]:
    """A prediction for each reader of the job, for its first measured trial; one that cannot be made says why.

    {"reader", "nodes", "ranks_per_node", "epoch_seconds": [a number an epoch] or None, "first_epoch_seconds",
    "later_epochs_seconds" (None for one epoch), "elapsed_seconds", "stall_share", "bytes": {"pfs", "local"},
    "simulated_share" (of the steps), "reason"}.
    """
    workload = find(job.workload)
    shape = shape_of(job, dataset)
    rows = {name: policy(name, workload) for name in job.readers}
    # as in a run: orders that keep files together fill fewer steps, and all readers take the least
    steps = min(order_of(executed(row, workload, shape)).fit(shape).steps for row in rows.values())
    found = []
    for name, row in rows.items():
        known = {"reader": name, "nodes": job.nodes, "ranks_per_node": job.ranks_per_node}
        reason = _cannot(row, job, dataset)
        figures = (
            dict.fromkeys(_FIGURES)
            if reason
            else _figures(job, dataset, system, row, _plans(job, dataset, row.order, steps), node_memory)
        )
        found.append(known | figures | {"reason": reason})
    return found


_FIGURES = (
    "epoch_seconds", "first_epoch_seconds", "later_epochs_seconds", "elapsed_seconds", "stall_share", "bytes",
    "simulated_share",
)  # fmt: skip


def require_known(job: Job, system: System, folder_digest: str) -> tuple[str, ...]:
    """What a user should know of the description before believing it. UsageError where it cannot be used.

    A description that was made from the very data that the run reads predicts nothing.
    """
    if folder_digest in system.by.get("data", ""):
        raise UsageError(
            f"--system {system.name} was calibrated on the dataset that this run reads, so that it would predict what "
            "it has seen. Calibrate on other data: dlio-bench calibrate makes its own."
        )
    if job.decode and system.preprocess == float("inf"):
        raise UsageError(
            f"--predict with --decode needs a rate of preprocessing, and system {system.name} has none. Measure it "
            f"with dlio-bench calibrate --workload {job.workload}."
        )
    notes = []
    if system.pfs_stream is None:
        notes.append("the description does not say how fast one thread reads: its reads are taken to have no latency")
    if job.nodes > (most := max(nodes for nodes, _ in system.pfs.points)):
        notes.append(f"the rate of the file system is known up to {most} nodes, and taken to be the same beyond")
    here = None if job.pfs is None else describe(from_dict(job.pfs))
    if system.by and system.by.get("emulated") != here:
        notes.append(
            f"calibrated on {system.by.get('emulated') or 'real storage'}, and the run reads {here or 'real storage'}"
        )
    if system.estimated:
        notes.append(f"estimated, from no source: {', '.join(system.estimated)}")
    return tuple(notes)


def document(system: System, notes: Sequence[str], rows: Sequence[Mapping[str, Any]], created: str) -> dict[str, Any]:
    """The JSON document of prediction.json."""
    return {
        "schema": SCHEMA,
        "created": created,
        "system": {"name": system.name, "estimated": list(system.estimated), "by": dict(system.by)},
        "notes": list(notes),
        "rows": [dict(row) for row in rows],
    }


def _cannot(row: Policy, job: Job, dataset: Dataset) -> str | None:
    """Why a reader cannot be predicted."""
    if row.delivery not in DELIVERIES:
        return f"its delivery ({row.delivery}) is not modelled"
    if row.placement != "none" and row.placement not in SHARES:
        return f"its placement ({row.placement}) is not modelled for real files"
    if not is_readable(dataset):
        return "its files are read through their container's library, which is not modelled"
    if job.cache == "cold-epochs":
        return "an epoch that starts anew (--cache cold-epochs) is not modelled"
    return None


def _plans(job: Job, dataset: Dataset, order_name: str, steps: int) -> Plans:
    """The plan of the first measured trial, cut to what is worth simulating."""
    shape, order, seed = shape_of(job, dataset), find_order(order_name), job.seed + job.warmup_trials
    a_step = job.ranks * job.batch * max(1, len(job.view))
    epochs = job.epochs if steps * a_step * job.epochs <= MOST_READS else min(job.epochs, LEAST_EPOCHS)
    kept = max(1, min(steps, MOST_READS // (a_step * epochs)))
    ids = [[order(shape, rank, epoch, seed)[:steps][:kept] for epoch in range(epochs)] for rank in range(job.ranks)]
    return Plans(ids, steps, job.epochs)


def _figures(job: Job, dataset: Dataset, system: System, row: Policy, plans: Plans, node_memory: int) -> dict[str, Any]:
    """Simulate a reader."""
    decode = find(job.workload).decode
    form = Form(dataset, job.view, decode(dataset) if job.decode and decode is not None else None)
    clock = Clock()
    pfs = FileSystem(clock, system, job.nodes)
    memory, threads = _tier(system, STAGING), max(job.threads, 1)
    cached = Memory(clock, memory.read, threads, job.nodes, shared=job.virtual)
    shares = _shares(job, dataset, form, row, plans)
    read_from, write_to = _local(system, shares, dataset, job, node_memory)
    tier_read = Memory(clock, read_from.read, threads, job.nodes, shared=job.virtual)
    tier_write = Memory(clock, write_to.write, threads, job.nodes, shared=job.virtual)
    sources = runtime.Sources(pfs if not shares else tier_read, cached)
    cut = Cut(form, job.check_crc, system.preprocess)
    cachable = [0.0] * job.epochs if shares else _cached_shares(job, dataset, form, plans, node_memory)
    ranks = [
        runtime.Rank(rank // job.ranks_per_node, chunks(cut, own, cachable), len(own) * plans.simulated_steps)
        for rank, own in enumerate(plans.ids)
    ]
    pace = runtime.Pace(
        job.step_seconds, job.sync, frozenset(range(0, ranks[0].steps, plans.simulated_steps)),
    )  # fmt: skip
    meeting = Meeting(clock, job.ranks, system.barrier)
    staged = [0.0] * job.ranks
    slots = _slots(job, form, plans)

    def run(number: int) -> Process:
        rank = ranks[number]
        if shares:
            entries = dataset.manifest.files
            pieces = [[length for _, length in tier.pieces(entries[file].bytes)] for file in shares[number].reads]
            yield from runtime.staging(clock, rank.node, pieces, pfs, tier_write, job.threads)
            yield from meeting.meet()
            yield from moved(clock, system, [_handed(share, dataset) for share in shares])
            staged[number] = clock.now
        handles = runtime.Handles(handles_kept(dataset), sources.stored.open_seconds)
        if row.delivery == "on demand":
            yield from runtime.on_demand(clock, rank, sources, handles, meeting, pace)
        else:
            ahead = runtime.Ahead(clock, rank, sources, handles, job.threads, slots)
            yield from ahead.trainer(meeting, pace)

    for number in range(job.ranks):
        clock.start(run(number))
    clock.run()
    return _summary(job, plans, ranks, max(staged), {"pfs": pfs.bytes, "local": tier_read.bytes if shares else 0})


def _summary(
    job: Job, plans: Plans, ranks: Sequence[runtime.Rank], staged: float, read: Mapping[str, int]
) -> dict[str, Any]:
    factor = plans.steps / plans.simulated_steps
    seconds = []
    for epoch in range(len(plans.ids[0])):
        part = slice(epoch * plans.simulated_steps, (epoch + 1) * plans.simulated_steps)
        before = staged if epoch == 0 else 0.0
        own = [before + (rank.ends[part].max() - max(rank.begins[part].min(), before)) * factor for rank in ranks]
        seconds.append(float(max(own)))
    later = float(np.mean(seconds[1:])) if len(seconds) > 1 else None
    seconds += [later if later is not None else seconds[0]] * (plans.epochs - len(seconds))
    compute = job.step_seconds * plans.steps * plans.epochs
    elapsed = float(sum(seconds))
    share = len(plans.ids[0]) * plans.simulated_steps / (plans.steps * plans.epochs)
    stall = float(np.mean([rank.stall for rank in ranks])) + staged
    whole = stall + job.step_seconds * ranks[0].steps
    return {
        "epoch_seconds": seconds,
        "first_epoch_seconds": seconds[0],
        "later_epochs_seconds": float(np.mean(seconds[1:])) if len(seconds) > 1 else None,
        "elapsed_seconds": max(elapsed, compute),
        "stall_share": stall / whole if whole else 0.0,
        "bytes": {name: round(size / share) for name, size in read.items()},
        "simulated_share": share,
    }


def _tier(system: System, name: str) -> Tier:
    return next((one for one in system.tiers if one.name == name), system.tiers[1])


def _shares(job: Job, dataset: Dataset, form: Form, row: Policy, plans: Plans) -> list[Share]:
    """What each rank stages; nothing where nothing is staged."""
    if row.placement == "none":
        return []
    files = len(dataset.training_files)
    wants = [np.unique(dataset.locate(np.concatenate([e.ravel() for e in own]), form.fields)[0]) for own in plans.ids]
    return [SHARES[row.placement](wants, files, job.ranks_per_node, rank) for rank in range(job.ranks)]


def _local(system: System, shares: Sequence[Share], dataset: Dataset, job: Job, node_memory: int) -> tuple[Tier, Tier]:
    """What copies are read from and written to: the node's disk, or memory, where there is room for them.

    The kernel keeps what is written as long as it is less than the share DIRTY of memory, and then has it written.
    """
    disk, ram = system.tiers[-1], system.tiers[1]
    entries = dataset.manifest.files
    kept = [sum(entries[file].bytes for file in share.kept.tolist()) for share in shares[:: job.ranks_per_node]]
    most = max(kept, default=0)
    return ram if most < node_memory / 2 else disk, ram if most < DIRTY * node_memory else disk


def _handed(share: Share, dataset: Dataset) -> int:
    """Bytes that a rank sends to and receives from others."""
    entries = dataset.manifest.files
    sent = sum(entries[file].bytes * len(receivers) for file, receivers in share.sends)
    return sent + sum(entries[file].bytes for file, _ in share.receives)


def _slots(job: Job, form: Form, plans: Plans) -> int:
    most = max(largest(planned(form, [(epoch, list(ids)) for epoch, ids in enumerate(own)])) for own in plans.ids)
    return max(FEWEST_SLOTS, min(MOST_SLOTS, job.staging_bytes // max(most, 1)))


def _cached_shares(job: Job, dataset: Dataset, form: Form, plans: Plans, node_memory: int) -> list[float]:
    """For each epoch the share of a node's samples that a cache on the way has from before: the page cache of its
    machine, or the emulated client cache of its node.
    """
    del form
    stored = sum(file.bytes for file in dataset.training_files)
    if job.cache == "warm":
        return [1.0] * job.epochs
    if job.pfs is None:
        machine = node_memory * (job.nodes if job.virtual else 1)
        fits = 1.0 if stored < machine / 2 else 0.0
    else:
        fits = min(1.0, from_dict(job.pfs).cache_bytes / stored)
    if fits == 0.0:
        return [0.0] * job.epochs
    # virtual nodes share the page cache of their machine
    sharers = job.ranks if job.pfs is None and job.virtual else job.ranks_per_node
    seen = np.zeros(dataset.samples, bool)
    shares = []
    for epoch in range(len(plans.ids[0])):
        now = np.concatenate([plans.ids[rank][epoch].ravel() for rank in range(sharers)])
        shares.append(fits * float(seen[now].mean()))
        seen[now] = True
    return shares + [shares[-1]] * (job.epochs - len(shares))
