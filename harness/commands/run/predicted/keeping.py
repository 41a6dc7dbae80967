"""readers/placed as processes on the virtual clock: nodes keep samples in tiers, and get them from each other.

readers/placed/rules.py decides about each sample, as when a reader runs. This file adds the time that it takes.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from dlio_bench.harness.commands.run.predicted.devices import Cores, Device
from dlio_bench.harness.commands.run.predicted.runtime import Chunk
from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.readers.placed.claims import Claims, State
from dlio_bench.harness.readers.placed.layout import Layout
from dlio_bench.harness.readers.placed.rules import Answer, Origin, Outlook, answer, fill_runs, origin, outlook, rival
from dlio_bench.harness.readers.placed.tier_filler import NAP_SECONDS
from dlio_bench.harness.readers.placed.tiers import Speeds
from dlio_bench.harness.simulator.kernel import Clock, Process, Signal


@dataclass
class NodeTiers:
    """One node's tiers: its layout, the state of each kept sample, and how far each tier is filled.

    names: of the tiers. coming: a signal for each sample that a thread is bringing.
    """

    layout: Layout
    names: Sequence[str]
    flags: bytearray = field(init=False)
    progress: list[int] = field(init=False)
    coming: dict[int, Signal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flags = bytearray(len(self.layout.ids))
        self.progress = [0] * (len(self.layout.bounds) - 1)
        self.best = rival(self.layout, self.names)


class Cache:
    """A cache on the way to the file system, with room for so many samples. It drops the least recently read first."""

    def __init__(self, room: int, samples: Iterable[int] = ()) -> None:
        self.room, self._samples = room, OrderedDict.fromkeys(samples)

    def has(self, sample: int) -> bool:
        """Whether it has a sample. It has the sample afterwards."""
        hit = sample in self._samples
        self._samples[sample] = None
        self._samples.move_to_end(sample)
        if len(self._samples) > self.room:
            self._samples.popitem(last=False)
        return hit

    def clear(self) -> None:
        """Drop all samples."""
        self._samples.clear()


class Costs(Struct, frozen=True):
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
    cores: Cores
    unpacking: float = 0.0
    open_seconds: float = 0.0  # of each sample, where each has a file of its own


class Keeping:
    """The tiers of all nodes. speeds [ranks]: what each rank knows of the speed of its sources."""

    def __init__(
        self, clock: Clock, nodes: Sequence[NodeTiers], behaviour: Behaviour, costs: Costs, speeds: Sequence[Speeds]
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
        yield from self._get(rank, chunk.samples, left)
        if left:
            self._left[rank, chunk.step] += left
        if chunk.decode_seconds:
            yield from self._costs.cores.compute(rank // self._per_node, chunk.decode_seconds)

    def complete(self, rank: int, step: int) -> Process:
        """Get, on demand, the samples of a step that `fetch` left out."""
        if left := self._left.pop((rank, step), []):
            yield from self._get(rank, left, None)

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
            yield from self._bring(rank, run, copies=copies)
            node.progress[tier] = max(node.progress[tier], run[-1] + 1 - first)

    def end(self, rank: int) -> None:
        """A rank has ended: its threads stop filling."""
        self._ended.add(rank)

    def _get(self, rank: int, samples: Sequence[int], left: list[int] | None) -> Process:
        """Get samples from their best source. `left` collects those that should not be read ahead; None: on demand."""
        node = self._nodes[rank // self._per_node]
        layout, now = node.layout, self._outlook(rank, ahead=left is not None)
        origins: dict[Origin, list[int]] = defaultdict(list)
        for sample in samples:
            origins[self._origin(rank, now, sample)].append(sample)
        if left is not None:
            left += origins[Origin.LATER]
        for sample in origins[Origin.FILES]:
            yield from self._read(rank, sample)
        for of in (Origin.CLAIMED, Origin.COPY):
            yield from self._fetched(rank, layout.number[origins[of]].tolist(), copies=of is Origin.COPY)
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
            absent = now.bypassed and claims.look(number) is State.ABSENT
            state = State.ABSENT if absent else self._take(rank, number)
        return origin(node.layout, self._behaviour, now, sample, state, node.progress)

    def _outlook(self, rank: int, *, ahead: bool) -> Outlook:
        node, beats = self._nodes[rank // self._per_node], self._speeds[rank].file_system_beats
        return outlook(self._behaviour, node.names, node.best, beats, alone=len(self._speeds) == 1, ahead=ahead)

    def _take(self, rank: int, number: int) -> State:
        state = self._claims[rank].take(number)
        if state is State.CLAIMED:
            self._nodes[rank // self._per_node].coming[number] = Signal()
        return state

    def _bring(self, rank: int, numbers: Sequence[int], *, copies: bool) -> Process:
        """Claim those of these samples that are missing, and put them into their tiers."""
        mine = [number for number in numbers if self._take(rank, number) is State.CLAIMED]
        yield from self._fetched(rank, mine, copies=copies)

    def _fetched(self, rank: int, numbers: Sequence[int], *, copies: bool) -> Process:
        """Get claimed samples from the file system or (`copies`) from their holders, and store them."""
        node = self._nodes[rank // self._per_node]
        layout = node.layout
        for sample in layout.ids[numbers].tolist() if numbers else ():
            if copies and layout.holder[sample] >= 0:
                yield from self._ask(rank, int(layout.holder[sample]), sample)
            else:
                yield from self._read(rank, sample)
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
        todo = Answer.REFUSE if number < 0 else answer(self._behaviour, self._claims[other].look(number), mine=mine)
        if todo is Answer.REFUSE:
            yield from self._read(rank, sample)
            return
        if todo is Answer.BRING:
            yield from self._bring(other, [number], copies=bool(node.layout.copy[number]))
        elif todo is Answer.WAIT:
            yield node.coming[number]
        size = self._costs.sizes[sample]
        self.remote += size
        yield self._clock.now + size / self._costs.network

    def _read(self, rank: int, sample: int) -> Process:
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
