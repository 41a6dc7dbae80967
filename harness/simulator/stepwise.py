"""The engine of the published simulations, step by step and node after node.

The rules are those of the simulations published with the model (see model.py). A step is a local batch on every node,
and ends when the slowest node has ended. A request gets its sample from the staging buffer or by a read on demand,
whichever is sooner. After each request the threads, in turn, fill the buffer in the order of the accesses, until the
next sample does not fit. The node frees the space of a local batch when it has consumed the whole batch.

Every thread gets its node's whole part of the file system, of which there are as many as `Clients` counts.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.simulator.fills import Trace
from dlio_bench.harness.simulator.model import Costs, Crowd, Outcome

INF = float("inf")


class Clients(Protocol):
    """How many nodes read the PFS. None stands for the worst case, gamma = N always."""

    def readers(self, node: int, now: float) -> int:
        """Gamma for a read that `node` starts now."""

    def consumed(self, node: int, at: float) -> None:
        """The node starts a read on demand, or consumes a sample that was staged from the PFS."""

    def fetched(self, node: int, at: float) -> None:
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
        self.ready = array("d")  # when each access that threads have reached is staged; INF: skipped
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
            staged = ready[access] if access < len(ready) else INF
            if staged > clock:
                served = self._late(access, clock, staged)
                self.stall += served - clock
                clock = served
            elif self.clients and self.from_pfs[access]:
                self.clients.consumed(self.number, clock)
            if staged < INF:
                freed += room[access]
            if ahead and len(ready) < len(sizes) and (room[len(ready)] <= self.free or len(ready) <= access):
                self.top_up(clock, access)
            clock += sizes[access] * compute + constant
        self.free += freed
        return clock

    def _late(self, access: int, now: float, staged: float) -> float:
        """When the trainer gets a sample that is not staged yet: by a read on demand now, or from the buffer."""
        cost, source = self._source(access, now, remote=True, pfs=True)
        demanded = now + self.size[access] * (cost + self.costs.write)
        on_demand = demanded < staged
        if on_demand:
            self.read[source] += self.size[access]
        if self.clients:
            if on_demand and source == len(self.read) - 1:
                self.clients.consumed(self.number, now)
            elif not on_demand and self.from_pfs[access]:
                self.clients.consumed(self.number, staged)
        return demanded if on_demand else staged

    def top_up(self, now: float, served: int) -> None:
        """Deal fetches to the threads, from `now` on, until the buffer is full; access `served` has been served."""
        clocks = self.clocks = [max(clock, now) for clock in self.clocks]
        ready, behaviour, pfs, write = self.ready, self.behaviour, len(self.read) - 1, self.costs.write
        while len(ready) <= served:  # those that did not fit into the buffer in time
            ready.append(INF)
            self.from_pfs.append(False)
        for access in range(len(ready), len(self.size)):
            size, room = self.size[access], self.room[access]
            if room > self.free:
                break
            thread = self.turn[0] % len(clocks)
            clock, may_pfs = clocks[thread], behaviour.ahead_pfs
            if behaviour.waits:
                released = self._released(access, clock)
                may_pfs = released == INF  # no copy is planned
                clock = clock if may_pfs else released
            cost, source = self._source(access, clock, remote=behaviour.ahead_remote, pfs=may_pfs)
            self.from_pfs.append(source == pfs)
            if cost == INF:
                ready.append(INF)
                continue
            if self.clients and source == pfs:
                self.clients.fetched(self.number, clock)
            self.turn[0] += 1
            clocks[thread] = clock + size * (cost + write)
            ready.append(clocks[thread])
            self.free -= room
            self.read[source] += size

    def _released(self, access: int, clock: float) -> float:
        """When a thread that is free at `clock` finds the planned copy, here or on another node; INF: there is none."""
        local = self.local_done[access]
        planned = local if local < INF else min(done[access] for done in self.remote_done)
        return max(clock, planned)

    def _source(self, access: int, now: float, *, remote: bool, pfs: bool) -> tuple[float, int]:
        """The cheapest source at `now`: its seconds per MB (INF: there is none) and its number in Outcome.read."""
        costs, best, source = self.costs, INF, 0
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
