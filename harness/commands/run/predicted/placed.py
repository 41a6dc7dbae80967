"""A reader that keeps samples in the tiers of all nodes, which get them from each other, on the virtual clock.

readers/placed/rules.py decides about each sample, as when a reader runs. This file adds the time that it takes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct

from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.devices import Cache, Device, FileSystem, NodeCores
from dlio_bench.harness.commands.run.predicted.runtime import Chunk, Cut, chunks, is_packed
from dlio_bench.harness.commands.run.predicted.setting import Executed, Setting
from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.readers.placed.claims import Claims, SampleState
from dlio_bench.harness.readers.placed.layout import Sequences, TierLayout, lay_out
from dlio_bench.harness.readers.placed.rules import (
    Answer,
    Origin,
    Outlook,
    answer,
    bypasses_tiers,
    current_outlook,
    fill_runs,
    filling_threads,
    groups,
    origin,
    rival,
)
from dlio_bench.harness.readers.placed.tier_filler import NAP_SECONDS
from dlio_bench.harness.readers.placed.tiers import DISK, RAM, Speeds
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.readers.threads import Readers
from dlio_bench.harness.simulator.kernel import Barrier, Clock, Process, Signal
from dlio_bench.harness.storage.extents import CHUNK_BYTES


@dataclass
class NodeTiers:
    """One node's tiers: its layout, the state of each kept sample, and how far each tier is filled.

    names: of the tiers. coming: a signal for each sample that a thread is bringing.
    """

    layout: TierLayout
    names: Sequence[str]
    flags: bytearray = field(init=False)
    progress: list[int] = field(init=False)
    coming: dict[int, Signal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flags = bytearray(len(self.layout.ids))
        self.progress = [0] * (len(self.layout.bounds) - 1)
        self.best = rival(self.layout, self.names)


class ReadCosts(Struct, frozen=True):
    """reads(sample): the sizes of its reads from the file system. sizes [samples]: bytes of a sample in a tier.

    pfs: the file system; cached: the device behind `caches` [nodes]; tiers, writes: each tier, for reading and writing.
    network: bytes a second from a node. unpacking: seconds for each byte of the file system.
    """

    reads: Callable[[int], Sequence[int]]
    sizes: Sequence[int]
    pfs: Device
    cached: Device
    caches: Sequence[Cache]
    tiers: Sequence[Device]
    writes: Sequence[Device]
    network: float
    cores: NodeCores
    unpacking: float = 0.0
    open_seconds: float = 0.0  # of each sample, where each has a file of its own


class Keeping:
    """The tiers of all nodes. speeds [ranks]: what each rank knows of the speed of its sources."""

    def __init__(
        self, clock: Clock, nodes: Sequence[NodeTiers], behaviour: Behaviour, costs: ReadCosts, speeds: Sequence[Speeds]
    ) -> None:
        self._clock, self._nodes, self._per_node = clock, nodes, len(speeds) // len(nodes)
        self._behaviour, self._costs, self._speeds = behaviour, costs, speeds
        layouts = [nodes[rank // self._per_node].layout for rank in range(len(speeds))]
        self._claims = [
            Claims(nodes[rank // self._per_node].flags, layout.keeper[layout.ids] == rank)
            for rank, layout in enumerate(layouts)
        ]
        self.remote = 0  # bytes
        self._ended: set[int] = set()
        self._left: dict[tuple[int, int], list[int]] = defaultdict(list)  # (rank, step) -> samples

    def fetch(self, rank: int, chunk: Chunk) -> Process:
        """Get a chunk's samples for a rank, ahead of its trainer."""
        left: list[int] = []
        yield from self._get_samples(rank, chunk.samples, left)
        if left:
            self._left[rank, chunk.step] += left
        if chunk.decode_seconds:
            yield from self._costs.cores.compute(rank // self._per_node, chunk.decode_seconds)

    def complete(self, rank: int, step: int) -> Process:
        """Get, on demand, the samples of a step that `fetch` left out."""
        if left := self._left.pop((rank, step), []):
            yield from self._get_samples(rank, left, None)

    def fill(self, rank: int, threads: int, *, copies: bool, patient: bool) -> Iterator[Process]:
        """The threads that fill this rank's part of its node's tiers, until the rank ends.

        patient: they pause while the file system is the faster source.
        """
        node = self._nodes[rank // self._per_node]
        for tier, runs in enumerate(fill_runs(node.layout, rank, copies=copies)):
            if not runs and not copies:
                node.progress[tier] = int(node.layout.bounds[tier + 1] - node.layout.bounds[tier])
            waiting = iter(runs)
            for _ in range(min(threads, len(runs))):
                yield self._filler(rank, tier, waiting, copies=copies, patient=patient)

    def _filler(self, rank: int, tier: int, runs: Iterator[list[int]], *, copies: bool, patient: bool) -> Process:
        node = self._nodes[rank // self._per_node]
        first, last = node.layout.bounds[tier : tier + 2].tolist()
        while rank not in self._ended:
            if patient and self._outlook(rank, ahead=True).bypassed:
                yield self._clock.now + NAP_SECONDS
                continue
            run = next(runs, None)
            if run is None:
                node.progress[tier] = node.progress[tier] if copies else last - first
                return
            yield from self._fetch_missing(rank, run, copies=copies)
            node.progress[tier] = max(node.progress[tier], run[-1] + 1 - first)

    def end(self, rank: int) -> None:
        """A rank has ended: its threads stop filling."""
        self._ended.add(rank)

    def _get_samples(self, rank: int, samples: Sequence[int], left: list[int] | None) -> Process:
        """Get samples from their best source. `left` collects those that should not be read ahead; None: on demand."""
        node = self._nodes[rank // self._per_node]
        layout, now = node.layout, self._outlook(rank, ahead=left is not None)
        origins: dict[Origin, list[int]] = defaultdict(list)
        for sample in samples:
            origins[self._origin(rank, now, sample)].append(sample)
        if left is not None:
            left += origins[Origin.LATER]
        for sample in origins[Origin.FILES]:
            yield from self._read_sample(rank, sample)
        for of in (Origin.CLAIMED, Origin.COPY):
            yield from self._fetch_claimed(rank, layout.number[origins[of]].tolist(), copies=of is Origin.COPY)
        for whom, of in ((layout.holder, Origin.HOLDER), (layout.keeper, Origin.KEEPER)):
            for sample in origins[of]:
                yield from self._ask(rank, int(whom[sample]), sample)
        for sample in origins[Origin.COMING]:
            if signal := node.coming.get(int(layout.number[sample])):
                yield signal
        for sample in [*origins[Origin.TIER], *origins[Origin.COMING]]:
            tier = int(layout.tier[layout.number[sample]])
            yield from self._costs.tiers[tier].read(rank // self._per_node, self._costs.sizes[sample])

    def _origin(self, rank: int, now: Outlook, sample: int) -> Origin:
        """Choose a sample's origin. Claim the sample if its tier should keep it and does not have it."""
        node, claims = self._nodes[rank // self._per_node], self._claims[rank]
        number, state = int(node.layout.number[sample]), None
        if number >= 0:
            absent = now.bypassed and claims.state_of(number) is SampleState.ABSENT
            state = SampleState.ABSENT if absent else self._take_sample(rank, number)
        return origin(node.layout, self._behaviour, now, sample, state, node.progress)

    def _outlook(self, rank: int, *, ahead: bool) -> Outlook:
        node, beats = self._nodes[rank // self._per_node], self._speeds[rank].file_system_beats
        return current_outlook(self._behaviour, node.names, node.best, beats, alone=len(self._speeds) == 1, ahead=ahead)

    def _take_sample(self, rank: int, number: int) -> SampleState:
        state = self._claims[rank].take(number)
        if state is SampleState.CLAIMED:
            self._nodes[rank // self._per_node].coming[number] = Signal()
        return state

    def _fetch_missing(self, rank: int, numbers: Sequence[int], *, copies: bool) -> Process:
        """Claim those of these samples that are missing, and put them into their tiers."""
        mine = [number for number in numbers if self._take_sample(rank, number) is SampleState.CLAIMED]
        yield from self._fetch_claimed(rank, mine, copies=copies)

    def _fetch_claimed(self, rank: int, numbers: Sequence[int], *, copies: bool) -> Process:
        """Get claimed samples from the file system or (`copies`) from their holders, and store them."""
        node = self._nodes[rank // self._per_node]
        layout = node.layout
        for sample in layout.ids[numbers].tolist() if numbers else ():
            if copies and layout.holder[sample] >= 0:
                yield from self._ask(rank, int(layout.holder[sample]), sample)
            else:
                yield from self._read_sample(rank, sample)
        for number in numbers:
            yield from self._costs.writes[int(layout.tier[number])].read(
                rank // self._per_node, int(layout.size[number])
            )
            self._claims[rank].settle(number, present=True)
            self._clock.wake(node.coming.pop(number))

    def _ask(self, rank: int, other: int, sample: int) -> Process:
        """Get a sample from another rank, which reads it first if it must."""
        node = self._nodes[other // self._per_node]
        number = int(node.layout.number[sample])
        mine = node.layout.keeper[sample] == other
        todo = Answer.REFUSE if number < 0 else answer(self._behaviour, self._claims[other].state_of(number), mine=mine)
        if todo is Answer.REFUSE:
            yield from self._read_sample(rank, sample)
            return
        if todo is Answer.BRING:
            yield from self._fetch_missing(other, [number], copies=bool(node.layout.copy[number]))
        elif todo is Answer.WAIT:
            yield node.coming[number]
        size = self._costs.sizes[sample]
        self.remote += size
        yield self._clock.now + size / self._costs.network

    def _read_sample(self, rank: int, sample: int) -> Process:
        node, costs, started = rank // self._per_node, self._costs, self._clock.now
        device = costs.cached if costs.caches[node].has(sample) else costs.pfs
        if costs.open_seconds:
            yield self._clock.now + costs.open_seconds
        reads = costs.reads(sample)
        for size in reads:
            yield from device.read(node, size)
        self._speeds[rank].saw_file_system(costs.sizes[sample], self._clock.now - started)
        if costs.unpacking:
            yield from costs.cores.compute(node, costs.unpacking * sum(reads))


def layouts(setting: Setting) -> list[TierLayout]:
    """Where every sample lies, by node."""
    job, plans, tiers = setting.job, setting.plans, setting.job.tiers
    sizes, epochs = tiers.sizes_of(setting.sample_view), range(len(plans.ids[0]))
    read = Sequences(lambda rank, epoch: plans.ids[rank][epoch].ravel(), job.ranks, job.ranks_per_node, epochs)
    row = setting.row.rule
    return [lay_out(row, read, sizes, len(sizes), tiers.capacities, node) for node in range(job.nodes)]


def all_bypass(setting: Setting, nodes: Sequence[TierLayout]) -> bool:
    """Whether the file system is the fastest source on all nodes, so that the reader leaves their tiers empty.

    A reader measures the rate of the file system as it reads. The model takes the rate of a thread while all threads
    read, as if the rank had read an epoch.
    """
    job, system, behaviour = setting.job, setting.system, setting.row.rule.behaviour
    speeds, names = _speeds(setting), setting.job.tiers.names
    if job.cache != "warm":
        share = min(system.pfs.rate_for(job.nodes) / job.nodes, system.pfs_link) / setting.threads
        epoch = int(setting.job.tiers.sizes_of(setting.sample_view)[setting.plans.ids[0][0]].sum())
        speeds.saw_file_system(epoch, epoch / (share * MB))
    return all(bypasses_tiers(behaviour, rival(layout, names), speeds.file_system_beats) for layout in nodes)


def _speeds(setting: Setting) -> Speeds:
    """What a rank knows before its first read."""
    tiers, speeds = setting.job.tiers, Speeds(setting.job.tiers.rates)
    speeds.begin(cached=setting.job.cache == "warm")
    speeds.saw_memory(round(setting.tier(tiers.names[0]).read.rate_for(1) * MB), 1.0)
    return speeds


def execute_placed(setting: Setting, nodes: Sequence[TierLayout]) -> Executed:
    """Run the reader to its end. nodes: their `layouts`."""
    job, system, row = setting.job, setting.system, setting.row.rule
    clock, sample_view, tiers = Clock(), setting.sample_view, setting.job.tiers
    pfs = FileSystem(clock, system, job.nodes)
    rates = [setting.tier(name) for name in tiers.names]
    kept = [setting.memory(clock, tier) for tier in rates]
    costs = ReadCosts(
        _reads(setting, sample_view).__getitem__,
        tiers.sizes_of(sample_view).tolist(),
        pfs,
        setting.cache_device(clock),
        setting.caches(),
        kept,
        [setting.memory(clock, tier, write=True) for tier in rates],
        system.network * MB or float("inf"),
        setting.cores(clock),
        1 / (system.preprocess * MB) if is_packed(setting.dataset) and sample_view.decode is None else 0.0,
        pfs.open_seconds if setting.dataset.file_per_sample else 0.0,
    )
    node_tiers = [NodeTiers(layout, tiers.names) for layout in nodes]
    keeping = Keeping(clock, node_tiers, row.behaviour, costs, [_speeds(setting) for _ in range(job.ranks)])
    ranks = [setting.rank(number, _groups(setting, sample_view, number)) for number in range(job.ranks)]
    meeting, pace, slots = Barrier(clock, job.ranks, system.barrier), setting.pace(), setting.slots()
    filling, staged = filling_threads(job.threads), [0.0]
    reading = Readers(0, trainer=False)
    if ranks[0].chunks:
        samples, of_batch = ranks[0].chunks[0].samples, sum(chunk.step == 0 for chunk in ranks[0].chunks)
        reads = [size for sample in samples for size in costs.reads(sample)]
        opens = len(samples) if costs.open_seconds else 0
        seconds = setting.file_system_seconds([] if job.cache == "warm" else reads, opens)
        reading = setting.readers(sum(reads), seconds, of_batch, ranks[0].chunks[0].decode_seconds)

    def run_rank(number: int) -> Process:
        rank = ranks[number]
        ahead = runtime.Ahead(clock, rank, lambda chunk: keeping.fetch(number, chunk), reading, slots, pace)
        for copies in (False, True) if row.first else ():
            yield from runtime.run_together(clock, list(keeping.fill(number, filling, copies=copies, patient=False)))
            yield from meeting.meet()
            staged[0] = clock.now
        if not row.first:
            for filler in keeping.fill(number, filling, copies=False, patient=True):
                clock.start(filler)

        def batch(step: int) -> Process:
            yield from ahead.batch(step)
            yield from keeping.complete(number, step)
            if step + 1 == pace.first_behind_pause(step):
                for cache in costs.caches:
                    cache.clear()

        yield from runtime.train(clock, rank, meeting, pace, batch)
        keeping.end(number)

    for number in range(job.ranks):
        clock.start(run_rank(number))
    clock.run()
    by_tier = {name: source.bytes for name, source in zip(tiers.names, kept, strict=True)}
    read_bytes = {"pfs": pfs.bytes, "local": by_tier.get(DISK, 0), "ram": by_tier.get(RAM, 0), "remote": keeping.remote}
    return Executed(ranks, staged[0], read_bytes)


def _reads(setting: Setting, sample_view: SampleView) -> list[list[int]]:
    """For each training sample the bytes of each of its reads, undecoded."""
    samples = setting.dataset.training_samples
    raw = Cut(SampleView(sample_view.dataset, sample_view.fields), setting.job.options.check_crc, float("inf"))
    reads: list[list[int]] = [[] for _ in range(samples)]
    for chunk in chunks(raw, list(np.arange(samples, dtype=np.int64)[:, None]), [0.0] * samples):
        reads[chunk.step] += [size for _, size in chunk.reads]
    return reads


def _groups(setting: Setting, sample_view: SampleView, number: int) -> list[Chunk]:
    """The groups of samples that a rank's threads take at a time (see readers/placed/tiered_extents.py)."""
    plan = [step for epoch in setting.plans.ids[number] for step in epoch]
    ids, _, rows, batches = groups(plan, sample_view.sizes, CHUNK_BYTES, of_one=setting.dataset.file_per_sample)
    decoded = 0.0 if sample_view.decode is None else 1 / (setting.system.preprocess * MB)
    rank_chunks = []
    for step, part in zip(batches.tolist(), np.split(ids, rows[1:-1]), strict=True):
        seconds = sample_view.stored_size(part) * decoded if decoded else 0.0
        rank_chunks.append(Chunk(step, (), seconds, samples=tuple(part.tolist())))
    return rank_chunks
