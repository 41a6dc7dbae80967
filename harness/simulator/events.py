"""The reference engine: every access of every node, one event after another.

The rules are those of the simulations published with the model (see model.py). A step is a local batch on every node,
and ends when the slowest node has ended. A request gets its sample from the staging buffer or by a read on demand,
whichever is sooner. After each request the threads, in turn, fill the buffer in the order of the accesses, until the
next sample does not fit. The node frees the space of a local batch when it has consumed the whole batch.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.simulator.model import Costs
from dlio_bench.harness.simulator.traces import Outcome, Trace

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
    """One node, between two of its batches. `turn`: a list of one number, the counter that deals fetches to threads."""

    def __init__(
        self, number: int, trace: Trace, behaviour: Behaviour, costs: Costs, clients: Clients | None, turn: list[int]
    ) -> None:
        self.number, self.behaviour, self.costs, self.clients, self.turn = number, behaviour, costs, clients, turn
        self.size = trace.size.tolist()
        self.room = self.size if trace.room is None else trace.room.tolist()
        self.local_done: list[float] = trace.local_done.tolist()
        self.local_tier = trace.local_tier.tolist()
        self.remote_done: list[list[float]] = [done.tolist() for done in trace.remote_done]
        self.ready: list[float] = []  # when each access that threads have reached is staged; INF: skipped
        self.from_pfs: list[bool] = []
        self.best_pfs = min(costs.pfs)
        self.free = costs.staging  # MB of the staging buffer
        self.clocks = [0.0] * costs.staging_threads
        self.stall = 0.0
        self.read = [0.0] * (len(costs.local) + 2)
        self.position = 0

    def batch(self, start: float, samples: int) -> float:
        """Consume the next `samples` accesses from `start` on. Returns when the compute of the last one ends."""
        clock, ahead, ready = start, self.behaviour.ahead, self.ready
        first, self.position = self.position, self.position + samples
        for access in range(first, self.position):
            staged = ready[access] if access < len(ready) else INF
            if staged > clock:
                served = self._late(access, clock, staged)
                self.stall += served - clock
                clock = served
            elif self.clients and self.from_pfs[access]:
                self.clients.consumed(self.number, clock)
            if ahead and len(ready) < len(self.size) and (self.room[len(ready)] <= self.free or len(ready) <= access):
                self.top_up(clock, access)
            clock += self.size[access] * self.costs.compute + self.costs.sample
        self.free += sum(self.room[access] for access in range(first, self.position) if ready and ready[access] < INF)
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

    def top_up(self, now: float, access: int) -> None:
        """Deal fetches to the threads, from `now` on, until the buffer is full; `access` has been served."""
        self.clocks = [max(clock, now) for clock in self.clocks]
        ready, behaviour, pfs = self.ready, self.behaviour, len(self.read) - 1
        while len(ready) <= access:  # those that did not fit into the buffer in time
            ready.append(INF)
            self.from_pfs.append(False)
        while len(ready) < len(self.size):
            access = len(ready)
            size = self.size[access]
            if self.room[access] > self.free:
                break
            thread = self.turn[0] % len(self.clocks)
            clock = self._released(access, self.clocks[thread]) if behaviour.waits else self.clocks[thread]
            none_planned = clock == INF
            clock = self.clocks[thread] if none_planned else clock
            may_pfs = none_planned if behaviour.waits else behaviour.ahead_pfs
            cost, source = self._source(access, clock, remote=behaviour.ahead_remote, pfs=may_pfs)
            self.from_pfs.append(source == pfs)
            if cost == INF:
                ready.append(INF)
                continue
            if self.clients and source == pfs:
                self.clients.fetched(self.number, clock)
            self.turn[0] += 1
            self.clocks[thread] = clock + size * (cost + self.costs.write)
            ready.append(self.clocks[thread])
            self.free -= self.room[access]
            self.read[source] += size

    def _released(self, access: int, clock: float) -> float:
        """When a thread that is free at `clock` finds the planned copy, here or on another node; INF: there is none."""
        local = self.local_done[access]
        planned = local if local < INF else min(done[access] for done in self.remote_done)
        return max(clock, planned)

    def _source(self, access: int, now: float, *, remote: bool, pfs: bool) -> tuple[float, int]:
        """The cheapest source at `now`: its seconds per MB (INF: there is none) and its number in Outcome.read."""
        best, source = INF, 0
        if self.local_done[access] <= now:
            source = self.local_tier[access]
            best = self.costs.local[source]
        if remote:
            for done, cost in zip(self.remote_done, self.costs.remote, strict=True):
                if cost < best and done[access] <= now:
                    best, source = cost, len(self.costs.remote)
        if pfs and best > self.best_pfs:  # else the count, which is slow, changes nothing
            gamma = self.clients.readers(self.number, now) if self.clients else self.costs.nodes
            if self.costs.pfs[gamma] < best:
                best, source = self.costs.pfs[gamma], len(self.costs.remote) + 1
        return best, source


def simulate(
    traces: Sequence[Trace],
    batch: int,
    behaviour: Behaviour,
    costs: Costs,
    start: float = 0.0,
    clients: Clients | None = None,
    *,
    shared_turn: bool = False,
) -> Outcome:
    """Run all nodes, each in local batches of `batch`, from `start` on.

    `clients` counts the readers of the PFS (None: always all nodes). `shared_turn`: one counter deals the fetches of
    all nodes to threads.
    """
    turn = [0]
    nodes = [
        Node(number, trace, behaviour, costs, clients, turn if shared_turn else [0])
        for number, trace in enumerate(traces)
    ]
    clock = start
    if behaviour.ahead:
        for node in nodes:
            node.top_up(clock, -1)
    for _ in range(len(traces[0].size) // batch):
        clock = max([node.batch(clock, batch) for node in nodes])
    return Outcome(clock, np.array([node.stall for node in nodes]), np.array([node.read for node in nodes]))
