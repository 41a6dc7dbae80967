"""readers/placed as processes on the virtual clock: samples kept in the tiers of nodes, and had from one another.

The rules are those of readers/placed/source_picker.py: a kept sample is fetched once, by whoever of its keeper's
threads needs it first; others wait for that one. Who does not keep a sample asks its holder, which brings it if it has not begun.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dlio_bench.harness.plan.placement.rows import Behaviour
from dlio_bench.harness.readers.placed.layout import Layout
from dlio_bench.harness.readers.placed.source_picker import AHEAD_OF_HOLDER
from dlio_bench.harness.readers.placed.tier_filler import FILL_BYTES
from dlio_bench.harness.run.predicted.devices import Device
from dlio_bench.harness.run.predicted.runtime import Chunk
from dlio_bench.harness.simulator.kernel import Clock, Process, Signal

ABSENT, BUSY, PRESENT = range(3)


@dataclass
class NodeTiers:
    """One node's tiers: its layout, the state of each kept sample, and how far each tier has been filled."""

    layout: Layout
    states: bytearray = field(default_factory=bytearray)
    coming: dict[int, Signal] = field(default_factory=dict)  # of samples that are BUSY
    progress: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = bytearray(len(self.layout.ids))
        self.progress = [0] * (len(self.layout.bounds) - 1)


@dataclass
class _Sources:
    """Where the samples of a request come from: numbers of kept ones, ids of the others. ask: rank -> ids."""

    here: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    ask: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Costs:
    """reads(sample): the sizes of the reads that bring it from the file system. sizes [samples]: bytes as it is kept.

    pfs: the file system; tiers, writes: of every tier, reading and writing. network: bytes a second from a node.
    """

    reads: Callable[[int], Sequence[int]]
    sizes: Sequence[int]
    pfs: Device
    tiers: Sequence[Device]
    writes: Sequence[Device]
    network: float
    open_seconds: float = 0.0  # of each sample, where each has a file of its own


class Keeping:
    """All nodes' tiers in a run of `behaviour`."""

    def __init__(
        self, clock: Clock, nodes: Sequence[NodeTiers], ranks_per_node: int, behaviour: Behaviour, costs: Costs
    ) -> None:
        self._clock, self._nodes, self._per_node = clock, nodes, ranks_per_node
        self._behaviour, self._costs = behaviour, costs
        self.remote = 0  # bytes
        self._left: dict[tuple[int, int], list[int]] = defaultdict(list)  # (rank, step) -> samples

    def fetch(self, rank: int, chunk: Chunk) -> Process:
        """Bring a chunk's samples to a rank, ahead of its trainer."""
        left: list[int] = []
        yield from self._get(rank, chunk.samples, left)
        if left:
            self._left[rank, chunk.step] += left
        if chunk.decode_seconds:
            yield self._clock.now + chunk.decode_seconds

    def complete(self, rank: int, step: int) -> Process:
        """What was left out of a step, on demand."""
        if left := self._left.pop((rank, step), []):
            yield from self._get(rank, left, None)

    def fill(self, rank: int, threads: int, *, copies: bool) -> Iterator[Process]:
        """The threads that bring what this rank is to bring into its node's tiers."""
        tiers = self._nodes[rank // self._per_node]
        layout = tiers.layout
        for tier, (first, last) in enumerate(pairwise(layout.bounds.tolist())):
            numbers = np.arange(first, last)
            chosen = numbers[(layout.keeper[layout.ids[first:last]] == rank) & (layout.copy[first:last] == copies)]
            runs = iter(_runs(layout, chosen.tolist()))
            if not len(chosen) and not copies:
                tiers.progress[tier] = last - first
            for _ in range(threads if len(chosen) else 0):
                yield self._filler(rank, tier, runs, copies=copies)

    def _filler(self, rank: int, tier: int, runs: Iterator[list[int]], *, copies: bool) -> Process:
        tiers = self._nodes[rank // self._per_node]
        first, last = tiers.layout.bounds[tier : tier + 2].tolist()
        for run in runs:
            mine = [number for number in run if tiers.states[number] == ABSENT]
            yield from self._bring(rank, mine, copies=copies)
            tiers.progress[tier] = max(tiers.progress[tier], run[-1] + 1 - first)
        if not copies:
            tiers.progress[tier] = last - first

    def _get(self, rank: int, samples: Sequence[int], left: list[int] | None) -> Process:
        """Samples from where they are best had; `left` takes those that are not to be read ahead."""
        node = rank // self._per_node
        tiers = self._nodes[node]
        layout = tiers.layout
        found = _Sources()
        for sample in samples:
            self._sort(rank, tiers, sample, found)
        if left is None:
            found.files += found.left
        else:
            left += found.left
        for sample in found.files:
            yield from self._read(node, sample)
        yield from self._fetched(rank, found.claimed)
        for other, wanted in found.ask.items():
            for sample in wanted:
                yield from self._ask(node, other, sample)
        for number in found.busy:
            if number in tiers.coming:
                yield tiers.coming[number]
        for number in [*found.here, *found.busy]:
            yield from self._costs.tiers[int(layout.tier[number])].read(node, int(layout.size[number]))

    def _sort(self, rank: int, tiers: NodeTiers, sample: int, found: "_Sources") -> None:
        """Choose a sample's source; claim it where it is to be kept, and is not there."""
        layout = tiers.layout
        number = int(layout.number[sample])
        if number >= 0 and tiers.states[number] == PRESENT:
            found.here.append(number)
        elif number >= 0 and layout.keeper[sample] != rank:
            found.ask[int(layout.keeper[sample])].append(sample)
        elif number >= 0:
            (found.busy if tiers.states[number] == BUSY else found.claimed).append(number)
            self._claim(tiers, number)
        elif self._may_ask(tiers, sample):
            found.ask[int(layout.holder[sample])].append(sample)
        elif not self._behaviour.ahead_pfs and layout.holder[sample] < 0:
            found.left.append(sample)
        else:
            found.files.append(sample)

    def _may_ask(self, tiers: NodeTiers, sample: int) -> bool:
        layout = tiers.layout
        if layout.holder[sample] < 0:
            return False
        if not self._behaviour.guesses:
            return True
        tier = int(layout.holder_tier[sample])
        places = int(layout.bounds[tier + 1] - layout.bounds[tier])
        filled = tiers.progress[tier]
        return filled >= places or filled > int(layout.holder_place[sample]) + AHEAD_OF_HOLDER

    def _bring(self, rank: int, numbers: Sequence[int], *, copies: bool) -> Process:
        """Claim these samples, and put them into their tier."""
        tiers = self._nodes[rank // self._per_node]
        for number in numbers:
            self._claim(tiers, number)
        yield from self._fetched(rank, numbers, copies=copies)

    def _fetched(self, rank: int, numbers: Sequence[int], *, copies: bool = True) -> Process:
        """Get claimed samples, from the file system or, copies, from their holders, and store them."""
        node = rank // self._per_node
        tiers = self._nodes[node]
        layout = tiers.layout
        for number in numbers:
            sample = int(layout.ids[number])
            if copies and layout.copy[number] and layout.holder[sample] >= 0:
                yield from self._ask(node, int(layout.holder[sample]), sample)
            else:
                yield from self._read(node, sample)
        for number in numbers:
            yield from self._costs.writes[int(layout.tier[number])].read(node, int(layout.size[number]))
            tiers.states[number] = PRESENT
            self._clock.wake(tiers.coming.pop(number))

    def _ask(self, node: int, other: int, sample: int) -> Process:
        """Get a sample from another rank, which brings it first if need be."""
        holding = self._nodes[other // self._per_node]
        number = int(holding.layout.number[sample])
        if number < 0:
            yield from self._read(node, sample)
            return
        if holding.states[number] == ABSENT:
            if self._behaviour.guesses:
                yield from self._read(node, sample)
                return
            yield from self._bring(other, [number], copies=bool(holding.layout.copy[number]))
        elif holding.states[number] == BUSY:
            yield holding.coming[number]
        size = self._costs.sizes[sample]
        self.remote += size
        yield self._clock.now + size / self._costs.network

    def _read(self, node: int, sample: int) -> Process:
        if self._costs.open_seconds:
            yield self._clock.now + self._costs.open_seconds
        for size in self._costs.reads(sample):
            yield from self._costs.pfs.read(node, size)

    def _claim(self, tiers: NodeTiers, number: int) -> None:
        if tiers.states[number] == ABSENT:
            tiers.states[number] = BUSY
            tiers.coming[number] = Signal()


def _runs(layout: Layout, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Numbers in order, some MiB of them at a time, as readers/placed/tier_filler.py takes them."""
    run: list[int] = []
    size = 0
    for number in numbers:
        run.append(number)
        size += int(layout.size[number])
        if size >= FILL_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run
