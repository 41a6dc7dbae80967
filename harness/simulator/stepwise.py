"""The engine of the published simulations, step by step and node after node.

The rules are those of the simulations published with the model (see model.py). A step is a local batch on every node,
and ends when the slowest node has ended. A request gets its sample from the staging buffer or by a read on demand,
whichever is sooner. After each request the threads, in turn, fill the buffer in the order of the accesses, until the
next sample does not fit. The node frees the space of a local batch when it has consumed the whole batch.

Every thread gets its node's whole part of the file system, of which there are as many as `Clients` counts: always all
nodes, or, with `--pfs-clients published`, as the published simulator counted. That mode alone has the habits below.
They are inferred from the tables in Boehringer's thesis (ETH, 2020) and its slides, which they reproduce, and none is a
property of a policy or a machine:

* Nodes are simulated one after another within a step, and logs decide who reads the PFS: a node counts as reading at a
  moment if one of its logs has an entry at that moment or later. So the first node mostly reads alone, and the last
  node may find all others reading.
* A node has two logs: of consumption (reads on demand, and consumed samples that were staged from the PFS), and of
  fetches into the staging buffer. `clairvoyant` also logs its first fetches into its tiers.
* One counter deals the fetches of all nodes to their threads.
* `clairvoyant` never keeps the last sample id. Its tiers first fetch a first block: the samples read most often, as
  many as fit into the staging buffer, as far as the tier holds them. No tier fetches anything else before all of the
  block is there. Two parts of this are inferred from published figures: that the other fetches wait, and that only
  fetches of the first block count as reading. With both, the distances to the bound in scenarios S1 to S4 (6.6, 0.27,
  0.08 and 10.5 %) come out within 0.1, 0.02, 0.03 and 0.1 percentage points. If the fetches of all tiers count, S3 and
  S4 are 1 point too slow; without the wait S2 is 0.01 %. Without tiers the policy is `staging-pool`, and a larger tier
  never makes it slower.
* A sample that the staging buffer has held before takes no room in it when it comes again.
* The stall before the first step is that of the last node, not of the slowest.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from msgspec.structs import replace

from dlio_bench.harness.plan.placement.frequency import count_accesses
from dlio_bench.harness.plan.placement.rule import (
    Behaviour,
    Integers,
    NodeContents,
    Sizes,
    cut_into_tiers,
    from_file_system,
)
from dlio_bench.harness.simulator.model import NEVER, Costs, Crowd, Fill, Outcome, Trace

CLAIRVOYANT = "clairvoyant"  # the placement that this simulator carries out in its own way
Block: TypeAlias = tuple[int, ...]  # for each tier, how many of its first samples


class Clients(Protocol):
    """How many nodes read the PFS. None stands for the worst case, gamma = N always."""

    def readers(self, node: int, now: float) -> int:
        """Gamma for a read that `node` starts now."""

    def note_consumed(self, node: int, at: float) -> None:
        """The node starts a read on demand, or consumes a sample that was staged from the PFS."""

    def note_fetch(self, node: int, at: float) -> None:
        """The node starts a fetch from the PFS into the staging buffer."""


class Node:
    """One node, between two of its batches. `turn`: a list of one number, the counter that deals fetches to threads.

    Arrays [accesses] are memoryviews: indexing one takes a third of the time, and it needs no memory of its own.
    """

    def __init__(
        self, number: int, trace: Trace, behaviour: Behaviour, costs: Costs, clients: Clients | None, turn: list[int]
    ) -> None:
        self.number, self.behaviour, self.costs, self.clients, self.turn = number, behaviour, costs, clients, turn
        self.size = memoryview(np.ascontiguousarray(trace.size))
        self.room = self.size if trace.room is None else memoryview(np.ascontiguousarray(trace.room))
        self.local_done, self.local_tier = memoryview(trace.local_done), memoryview(trace.local_tier)
        self.remote_done = [memoryview(done) for done in trace.remote_done]
        self.copied = memoryview(np.minimum.reduce([trace.local_done, *trace.remote_done]))  # from when on, anywhere
        self.ready = array("d")  # when each access that threads have reached is staged; NEVER: skipped
        self.from_pfs = bytearray()  # whether each of these came from there
        self.best_pfs = min(costs.pfs)
        self.free = costs.staging  # MB of the staging buffer
        self.clocks = [0.0] * costs.staging_threads
        self.stall = 0.0
        self.read = [0.0] * (len(costs.local) + 2)
        self.position = 0

    def batch(self, start: float, samples: int) -> float:
        """Consume the next `samples` accesses from `start` on. Returns when the compute of the last one ends."""
        clock, ahead, ready, sizes, room = start, self.behaviour.ahead, self.ready, self.size, self.room
        compute, constant, freed = self.costs.compute, self.costs.sample, 0.0
        first, self.position = self.position, self.position + samples
        for access in range(first, self.position):
            staged = ready[access] if access < len(ready) else NEVER
            if staged > clock:
                served = self._late_arrival(access, clock, staged)
                self.stall += served - clock
                clock = served
            elif self.clients and self.from_pfs[access]:
                self.clients.note_consumed(self.number, clock)
            if staged < NEVER:
                freed += room[access]
            if ahead and len(ready) < len(sizes) and (room[len(ready)] <= self.free or len(ready) <= access):
                self.top_up(clock, access)
            clock += sizes[access] * compute + constant
        self.free += freed
        return clock

    def _late_arrival(self, access: int, now: float, staged: float) -> float:
        """When the trainer gets a sample that is not staged yet: by a read on demand now, or from the buffer."""
        cost, source = self._source(access, now, remote=True, pfs=True)
        demanded = now + self.size[access] * (cost + self.costs.write)
        on_demand = demanded < staged
        if on_demand:
            self.read[source] += self.size[access]
        if self.clients:
            if on_demand and source == len(self.read) - 1:
                self.clients.note_consumed(self.number, now)
            elif not on_demand and self.from_pfs[access]:
                self.clients.note_consumed(self.number, staged)
        return demanded if on_demand else staged

    def top_up(self, now: float, served: int) -> None:
        """Deal fetches to the threads, from `now` on, until the buffer is full; access `served` has been served."""
        clocks = self.clocks = [max(clock, now) for clock in self.clocks]
        ready, behaviour, pfs, write = self.ready, self.behaviour, len(self.read) - 1, self.costs.write
        while len(ready) <= served:  # those that did not fit into the buffer in time
            ready.append(NEVER)
            self.from_pfs.append(False)
        for access in range(len(ready), len(self.size)):
            size, room = self.size[access], self.room[access]
            if room > self.free:
                break
            thread = self.turn[0] % len(clocks)
            clock, may_pfs = clocks[thread], behaviour.ahead_pfs
            if behaviour.waits:
                released = self._copy_ready(access, clock)
                may_pfs = released == NEVER  # no copy is planned
                clock = clock if may_pfs else released
            cost, source = self._source(access, clock, remote=behaviour.ahead_remote, pfs=may_pfs)
            self.from_pfs.append(source == pfs)
            if cost == NEVER:
                ready.append(NEVER)
                continue
            if self.clients and source == pfs:
                self.clients.note_fetch(self.number, clock)
            self.turn[0] += 1
            clocks[thread] = clock + size * (cost + write)
            ready.append(clocks[thread])
            self.free -= room
            self.read[source] += size

    def _copy_ready(self, access: int, clock: float) -> float:
        """When a thread that is free at `clock` finds the planned copy, here or elsewhere; NEVER: there is none."""
        local = self.local_done[access]
        planned = local if local < NEVER else min(done[access] for done in self.remote_done)
        return max(clock, planned)

    def _source(self, access: int, now: float, *, remote: bool, pfs: bool) -> tuple[float, int]:
        """The cheapest source at `now`: its seconds per MB (NEVER: there is none) and its number in Outcome.read."""
        costs, best, source = self.costs, NEVER, 0
        if self.copied[access] <= now:
            if self.local_done[access] <= now:
                source = self.local_tier[access]
                best = costs.local[source]
            if remote:
                for done, cost in zip(self.remote_done, costs.remote, strict=True):
                    if cost < best and done[access] <= now:
                        best, source = cost, len(costs.remote)
        if pfs and best > self.best_pfs:  # else the count, which is slow, changes nothing
            gamma = self.clients.readers(self.number, now) if self.clients else costs.nodes
            if costs.pfs[gamma] < best:
                best, source = costs.pfs[gamma], len(costs.remote) + 1
        return best, source


def simulate(
    traces: Sequence[Trace],
    batch: int,
    behaviour: Behaviour,
    costs: Costs,
    start: float = 0.0,
    clients: Clients | None = None,
    crowd: Crowd | None = None,
) -> Outcome:
    """Run all nodes, each in local batches of `batch`, from `start` on.

    `clients` counts the readers of the PFS, and deals the fetches of all nodes to threads by one counter. None: always
    all nodes, each with a counter of its own. `crowd`: of nodes that are not simulated.
    """
    turn = [0]
    nodes = [
        Node(number, trace, behaviour, costs, clients, turn if clients else [0]) for number, trace in enumerate(traces)
    ]
    clock = start
    if behaviour.ahead:
        for node in nodes:
            node.top_up(clock, -1)
    for step in range(len(traces[0].size) // batch):
        ends = [node.batch(clock, batch) for node in nodes]
        if crowd is None:
            clock = max(ends)
        else:
            read = np.array([trace.size[step * batch : (step + 1) * batch].sum() for trace in traces])
            compute = costs.batch_seconds(crowd.largest[step], batch)
            clock = crowd.end(step, clock, np.array(ends), read, compute)
    return Outcome(clock, np.array([node.stall for node in nodes]), np.array([node.read for node in nodes]))


class LoggedClients:
    """Counts the readers of the PFS from two logs a node, as published."""

    def __init__(self, nodes: int, planned: Sequence[Sequence[float]] = ()) -> None:
        """`planned`: for each node the starts of fetches that are logged before the run."""
        self._consumed: list[list[float]] = [[] for _ in range(nodes)]
        self._fetched: list[list[float]] = [list(starts) for starts in planned] or [[] for _ in range(nodes)]

    def readers(self, node: int, now: float) -> int:
        """One, and each other node with an entry at `now` or later in one of its logs."""
        gamma = 1
        for other, (consumed, fetched) in enumerate(zip(self._consumed, self._fetched, strict=True)):
            if other != node and (
                (consumed and consumed[-1] >= now)  # in order: its last entry decides
                or bisect_left(fetched, now) < len(fetched)
            ):
                gamma += 1
        return gamma

    def note_consumed(self, node: int, at: float) -> None:
        """See Clients."""
        self._consumed[node].append(at)

    def note_fetch(self, node: int, at: float) -> None:
        """See Clients."""
        self._fetched[node].append(at)


def clairvoyant(
    sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], staging: int
) -> tuple[list[NodeContents], list[Block]]:
    """The clairvoyant placement in the published order of fetches, and each node's first block.

    The first `staging` bytes of the samples read most often come first in their tiers.
    """
    keeps, blocks = [], []
    for sequence in sequences:
        ids, counts, first = count_accesses(sequence)
        kept = ids < len(sizes) - 1
        ids, counts, first = ids[kept], counts[kept], first[kept]
        ranked = np.argsort(-counts, kind="stable")
        (head,) = cut_into_tiers(ranked, sizes[ids], [staging])
        later = np.ones(len(ids), bool)
        later[head] = False
        tiers = [
            part[np.lexsort((first[part], later[part]))] for part in cut_into_tiers(ranked, sizes[ids], capacities)
        ]
        keeps.append(from_file_system([ids[part] for part in tiers]))
        blocks.append(tuple(int((~later[part]).sum()) for part in tiers))
    return keeps, blocks


def behind_first_block(fill: Fill, block: Block) -> Fill:
    """The fill in which all other fetches wait for the first block."""
    ends = [float(done[:count].max(initial=0.0)) for done, count in zip(fill.done, block, strict=True)]
    waits = [
        np.where(np.arange(len(done)) < count, 0.0, max(ends) - end)
        for done, count, end in zip(fill.done, block, ends, strict=True)
    ]
    starts, done = (
        tuple(times + wait for times, wait in zip(tiers, waits, strict=True)) for tiers in (fill.starts, fill.done)
    )
    return replace(fill, starts=starts, done=done)


def without_room_for_old(trace: Trace, ids: Integers) -> Trace:
    """The trace of a node that reads `ids`, in which a sample takes room in the staging buffer only the first time."""
    room = np.zeros_like(trace.size)
    first = np.unique(ids, return_index=True)[1]
    room[first] = trace.size[first]
    return replace(trace, room=room)


def first_fetches(fills: Sequence[Fill], blocks: Sequence[Block]) -> list[list[float]]:
    """When each node starts to fetch the samples of its first block: `planned` of LoggedClients."""
    return [
        sorted(float(start) for starts, count in zip(fill.starts, block, strict=True) for start in starts[:count])
        for fill, block in zip(fills, blocks, strict=True)
    ]
