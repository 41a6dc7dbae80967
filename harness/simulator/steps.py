"""The vectorised engine: the rules of events.py for many nodes at once, all of them reading the PFS (gamma = N).

It goes access by access, with every operation on all nodes. So it costs about as much as the accesses of one node, and
is the faster engine from some tens of nodes on. It can also simulate a sample of the nodes: see `Crowd`.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from msgspec import Struct

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.rule import Behaviour, Mask
from dlio_bench.harness.simulator.fills import Floats
from dlio_bench.harness.simulator.model import Costs
from dlio_bench.harness.simulator.traces import Outcome, Trace

INF = np.inf


class Crowd(Struct, frozen=True):
    """All `nodes` of a job of which only some are simulated. largest [steps]: MB of the largest batch on any node.

    A step then ends at mean + k * deviation of the ends on the simulated nodes. k is the place, in deviations, of the
    largest batch of all nodes among the batches of the simulated ones. That is exact if time is proportional to bytes,
    as in pure compute; otherwise it scales with the spread of the waits. If all samples have one size, k is that of the
    largest of `nodes` normal numbers.
    """

    largest: Floats
    nodes: int

    def end(self, step: int, start: float, ends: Floats, read: Floats, compute: float) -> float:
        """When a step that began at `start` ends for all nodes. ends, read [simulated nodes]: when each ends its batch,
        and the batch's MB; `compute`: seconds of the largest batch.
        """
        largest, spread = float(self.largest[step]), float(read.std())
        factor = (largest - float(read.mean())) / spread if spread > 1e-9 * largest else _largest(self.nodes)
        return max(float(ends.max()), start + compute, float(ends.mean() + factor * ends.std()))


def _largest(count: int) -> float:
    """The expected largest of `count` standard normal numbers (Blom, Statistical Estimates, 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


class Batches:
    """All simulated nodes, between two steps. Arrays are [nodes] or [nodes, accesses]."""

    def __init__(self, traces: Sequence[Trace], behaviour: Behaviour, costs: Costs) -> None:
        self.behaviour, self.costs = behaviour, costs
        self.size = np.stack([trace.size for trace in traces])
        self.local_done = np.stack([trace.local_done for trace in traces])
        self.local_tier = np.stack([trace.local_tier for trace in traces])
        tiers = range(len(costs.local))
        self.remote_done = [np.stack([trace.remote_done[tier] for trace in traces]) for tier in tiers]
        # a tier that nobody fills costs no time
        self.some_local = bool(np.isfinite(self.local_done).any())
        self.some_remote = [tier for tier in tiers if np.isfinite(self.remote_done[tier]).any()]
        nodes, self.accesses = self.size.shape
        self.rows = np.arange(nodes)
        self.ready = np.full((nodes, self.accesses), INF)
        self.filled = np.zeros(nodes, np.int64)
        self.free = np.full(nodes, costs.staging)
        self.clocks = np.zeros((nodes, costs.staging_threads))
        self.turn = np.zeros(nodes, np.int64)
        self.stall = np.zeros(nodes)
        self.read = np.zeros((nodes, len(costs.local) + 2))
        self.local_costs = np.array(costs.local)
        self.position = 0

    def batch(self, start: Floats, samples: int) -> Floats:
        """Consume the next `samples` accesses on every node from `start` on. Returns when each node ends."""
        clock = start.copy()
        first, self.position = self.position, self.position + samples
        for access in range(first, self.position):
            size = self.size[:, access]
            staged = self.ready[:, access]
            late = staged > clock
            if late.any():
                served = self._late(access, clock, staged, late)
                self.stall += served - clock
                clock = served
            if self.behaviour.ahead:
                self.top_up(clock, access)
            clock = clock + (size * self.costs.compute + self.costs.sample)
        part = slice(first, self.position)
        self.free += np.where(np.isfinite(self.ready[:, part]), self.size[:, part], 0.0).sum(axis=1)
        return clock

    def _late(self, access: int, now: Floats, staged: Floats, late: Mask) -> Floats:
        size = self.size[:, access]
        at = np.full(len(self.rows), access)
        cost, source = self._source(self.rows, at, now, remote=True, pfs=True)
        demanded = now + size * (cost + self.costs.write)
        on_demand = late & (demanded < staged)
        np.add.at(self.read, (self.rows[on_demand], source[on_demand]), size[on_demand])
        # a sample that was never staged takes no space: its place in `ready` stays INF
        return np.where(on_demand, demanded, np.where(late, staged, now))

    def top_up(self, now: Floats, access: int) -> None:
        """Deal fetches to the threads until each node's buffer is full; `access` has been served."""
        rows = self.rows[self.filled < self.accesses]
        position = self.filled[rows]
        rows = rows[(position <= access) | (self.size[rows, position] <= self.free[rows])]
        if not len(rows):
            return
        self.clocks[rows] = np.maximum(self.clocks[rows], now[rows, None])
        self.filled[rows] = np.maximum(self.filled[rows], access + 1)
        while True:
            rows = rows[self.filled[rows] < self.accesses]
            rows = rows[self.size[rows, self.filled[rows]] <= self.free[rows]]
            if not len(rows):
                return
            self._fetch(rows, self.filled[rows])
            self.filled[rows] += 1

    def _fetch(self, rows: Ids, at: Ids) -> None:
        size = self.size[rows, at]
        thread = self.turn[rows] % self.clocks.shape[1]
        clock = self.clocks[rows, thread]
        may_pfs: Mask | bool = self.behaviour.ahead_pfs
        if self.behaviour.waits:
            local = self.local_done[rows, at]
            others = np.minimum.reduce([done[rows, at] for done in self.remote_done])
            planned = np.where(np.isfinite(local), local, others)
            may_pfs = ~np.isfinite(planned)
            clock = np.where(may_pfs, clock, np.maximum(clock, planned))
        cost, source = self._source(rows, at, clock, remote=self.behaviour.ahead_remote, pfs=may_pfs)
        available = np.isfinite(cost)
        if not available.all():
            rows, at, size, thread = rows[available], at[available], size[available], thread[available]
            clock, cost, source = clock[available], cost[available], source[available]
        end = clock + size * (cost + self.costs.write)
        self.clocks[rows, thread] = end
        self.ready[rows, at] = end
        self.turn[rows] += 1
        self.free[rows] -= size
        self.read[rows, source] += size

    def _source(self, rows: Ids, at: Ids, now: Floats, *, remote: bool, pfs: Mask | bool) -> tuple[Floats, Ids]:
        """The cheapest source of each access at `now`: seconds per MB (INF: none) and its number in Outcome.read."""
        best = np.full(len(rows), INF)
        source = np.zeros(len(rows), np.int64)
        tiers = len(self.costs.local)
        if self.some_local:
            here = self.local_done[rows, at] <= now
            source = self.local_tier[rows, at].astype(np.int64)
            best = np.where(here, self.local_costs[source], INF)
        if remote:
            for tier in self.some_remote:
                better = (self.costs.remote[tier] < best) & (self.remote_done[tier][rows, at] <= now)
                best = np.where(better, self.costs.remote[tier], best)
                source = np.where(better, tiers, source)
        better = np.asarray(pfs) & (self.costs.worst_pfs < best)
        return np.where(better, self.costs.worst_pfs, best), np.where(better, tiers + 1, source)


def simulate(
    traces: Sequence[Trace],
    batch: int,
    behaviour: Behaviour,
    costs: Costs,
    start: float = 0.0,
    crowd: Crowd | None = None,
) -> Outcome:
    """Run all nodes, each in local batches of `batch`, from `start` on. `crowd`: of nodes that are not simulated."""
    nodes = Batches(traces, behaviour, costs)
    clock = start
    each = np.full(len(traces), clock)
    if behaviour.ahead:
        nodes.top_up(each, -1)
    for step in range(nodes.accesses // batch):
        ends = nodes.batch(np.full(len(traces), clock), batch)
        if crowd is None:
            clock = float(ends.max())
        else:
            read = nodes.size[:, step * batch : (step + 1) * batch].sum(axis=1)
            clock = crowd.end(step, clock, ends, read, costs.batch_seconds(crowd.largest[step], batch))
    return Outcome(clock, nodes.stall, nodes.read)
