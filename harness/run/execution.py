"""A reader of a run on the virtual clock: what its ranks read, where from, and when their steps begin and end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.system import STAGING, System, Tier
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.rows import KEPT_ON_FILES
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.readers.ahead import FEWEST_SLOTS, MOST_SLOTS
from dlio_bench.harness.readers.form import Form
from dlio_bench.harness.readers.session import largest, planned
from dlio_bench.harness.readers.shares import SHARES, Share
from dlio_bench.harness.run.chunks import Cut, chunks, handles_kept
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.simulator import runtime
from dlio_bench.harness.simulator.devices import FileSystem, Memory, moved
from dlio_bench.harness.simulator.kernel import Clock, Meeting, Process
from dlio_bench.harness.storage import tier
from dlio_bench.harness.storage.pfs.spec import from_dict

DIRTY = 0.1  # of memory: vm.dirty_background_ratio, whose default is 10 % (Linux, admin-guide/sysctl/vm.rst)


@dataclass(frozen=True)
class Plans:
    """What every rank reads: [rank][epoch] int64 [steps, batch]; `steps`, `epochs`: those of the run, all of them."""

    ids: list[list[Ids]]
    steps: int
    epochs: int

    @property
    def whole(self) -> bool:
        """Whether all of the run is simulated."""
        return (self.simulated_steps, len(self.ids[0])) == (self.steps, self.epochs)

    @property
    def simulated_steps(self) -> int:
        """Steps of an epoch that are simulated."""
        return len(self.ids[0][0])


@dataclass(frozen=True)
class Setting:
    """One reader of a job, on a machine. node_memory: bytes."""

    job: Job
    dataset: Dataset
    system: System
    row: Policy
    plans: Plans
    node_memory: int

    @property
    def form(self) -> Form:
        """What is delivered of a sample."""
        decode = find(self.job.workload).decode
        return Form(self.dataset, self.job.view, decode(self.dataset) if self.job.decode and decode else None)

    @property
    def threads(self) -> int:
        """Reading threads of a node."""
        return max(self.job.threads, 1) * self.job.ranks_per_node

    def tier(self, name: str) -> Tier:
        """A tier of the machine; one in memory where it has none of this name."""
        return next((one for one in self.system.tiers if one.name == name), self.system.tiers[1])

    def memory(self, clock: Clock, one: Tier, *, write: bool = False) -> Memory:
        """A tier on the clock."""
        return Memory(clock, one.write if write else one.read, self.threads, self.job.nodes, shared=self.job.virtual)

    def pace(self) -> runtime.Pace:
        """What trainers do between two batches."""
        steps = self.plans.simulated_steps
        starts = frozenset(range(0, steps * len(self.plans.ids[0]), steps))
        return runtime.Pace(self.job.step_seconds, self.job.sync, starts)

    def rank(self, number: int, of: Sequence[runtime.Chunk]) -> runtime.Rank:
        """A rank that is to bring these chunks."""
        epochs = len(self.plans.ids[number])
        return runtime.Rank(number // self.job.ranks_per_node, of, epochs * self.plans.simulated_steps)

    def slots(self) -> int:
        """Slots of the staging buffer."""
        form, plans = self.form, self.plans.ids
        most = max(largest(planned(form, [(epoch, list(ids)) for epoch, ids in enumerate(own)])) for own in plans)
        return max(FEWEST_SLOTS, min(MOST_SLOTS, self.job.staging_bytes // max(most, 1)))


@dataclass(frozen=True)
class Executed:
    """What came of it. staged: seconds before the first batch. bytes: read from each source, by its name."""

    ranks: Sequence[runtime.Rank]
    staged: float
    bytes: Mapping[str, int]


def execute(setting: Setting) -> Executed:
    """Run a reader to its end. DoesNotApplyError where its placement cannot work with the tiers there are."""
    if setting.row.placement in KEPT_ON_FILES:
        from dlio_bench.harness.run.execution_placed import bypassed, execute_placed

        if not bypassed(setting):
            return execute_placed(setting)
    return _plain(setting)


def _plain(setting: Setting) -> Executed:
    """Readers without a placement, or with one of whole files."""
    job, dataset, system, row, plans = setting.job, setting.dataset, setting.system, setting.row, setting.plans
    clock, form = Clock(), setting.form
    pfs = FileSystem(clock, system, job.nodes)
    shares = _shares(setting, form)
    read_from, write_to = _local(setting, shares)
    copies, writing = setting.memory(clock, read_from), setting.memory(clock, write_to, write=True)
    sources = runtime.Sources(copies if shares else pfs, setting.memory(clock, setting.tier(STAGING)))
    cut = Cut(form, job.check_crc, system.preprocess)
    cached = [0.0] * job.epochs if shares else _cached_shares(setting)
    ranks = [setting.rank(number, chunks(cut, own, cached)) for number, own in enumerate(plans.ids)]
    meeting, pace, slots = Meeting(clock, job.ranks, system.barrier), setting.pace(), setting.slots()
    staged = [0.0]

    def run(number: int) -> Process:
        rank = ranks[number]
        if shares:
            entries = dataset.manifest.files
            pieces = [[length for _, length in tier.pieces(entries[file].bytes)] for file in shares[number].reads]
            yield from runtime.staging(clock, rank.node, pieces, pfs, writing, job.threads)
            yield from meeting.meet()
            yield from moved(clock, system, [_handed(share, dataset) for share in shares])
            staged[0] = clock.now
        handles = runtime.Handles(handles_kept(dataset), sources.stored.open_seconds)
        fetch = partial(runtime.fetch_reads, clock, rank, sources, handles)
        if row.delivery == "on demand":
            yield from runtime.on_demand(clock, rank, fetch, meeting, pace)
        else:
            yield from runtime.Ahead(clock, rank, fetch, job.threads, slots).trainer(meeting, pace)

    for number in range(job.ranks):
        clock.start(run(number))
    clock.run()
    return Executed(ranks, staged[0], {"pfs": pfs.bytes, "local": copies.bytes if shares else 0})


def _shares(setting: Setting, form: Form) -> list[Share]:
    """What each rank stages; nothing where nothing is staged."""
    job, dataset, row = setting.job, setting.dataset, setting.row
    if row.placement not in SHARES:
        return []
    files = len(dataset.training_files)
    wants = [
        np.unique(dataset.locate(np.concatenate([epoch.ravel() for epoch in own]), form.fields)[0])
        for own in setting.plans.ids
    ]
    return [SHARES[row.placement](wants, files, job.ranks_per_node, rank) for rank in range(job.ranks)]


def _local(setting: Setting, shares: Sequence[Share]) -> tuple[Tier, Tier]:
    """What copies are read from and written to: the node's disk, or memory, where there is room for them.

    The kernel keeps what is written as long as it is less than the share DIRTY of memory, and then has it written.
    """
    disk, ram = setting.system.tiers[-1], setting.system.tiers[1]
    entries, memory = setting.dataset.manifest.files, setting.node_memory
    kept = [sum(entries[file].bytes for file in share.kept.tolist()) for share in shares[:: setting.job.ranks_per_node]]
    most = max(kept, default=0)
    return ram if most < memory / 2 else disk, ram if most < DIRTY * memory else disk


def _handed(share: Share, dataset: Dataset) -> int:
    """Bytes that a rank sends to and receives from others."""
    entries = dataset.manifest.files
    sent = sum(entries[file].bytes * len(receivers) for file, receivers in share.sends)
    return sent + sum(entries[file].bytes for file, _ in share.receives)


def _cached_shares(setting: Setting) -> list[float]:
    """For each epoch the share of a node's samples that a cache on the way has from before: the page cache of its
    machine, or the emulated client cache of its node.
    """
    job, dataset, plans = setting.job, setting.dataset, setting.plans
    stored = sum(file.bytes for file in dataset.training_files)
    if job.cache == "warm":
        return [1.0] * job.epochs
    if job.pfs is None:
        machine = setting.node_memory * (job.nodes if job.virtual else 1)
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
