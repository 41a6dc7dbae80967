"""The engine that conserves the file system's bandwidth: all threads together never read faster than it delivers.

All nodes read the PFS at once, so that each has the share min(b_fs, t(N) / N) of it (eq. 3.5). The threads of a node,
those that fill its tiers and those that stage, take turns on that one share. All else follows our readers, whose rules
are in readers/placed/rules.py: the first thread of a node that needs a kept sample fetches it, and others wait for that
thread. A node that does not keep a sample asks its holder, which fetches it if no thread has begun; if the reader
guesses (Behaviour.guesses), it asks only for what is there. Those rules choose a source from what a rank knows; here
the node knows when every sample is where, and the costs of all sources decide. (`run --predict` replays the rules
themselves.) Steps, buffer and costs are those of stepwise.py.

Events come in the order of time: a thread begins a fetch, a trainer continues, a node ends its batch. That costs some
microseconds for each access of a simulated node.
"""

import heapq
from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.harness.plan.placement.rule import Behaviour, Integers, NodeContents, from_file_system
from dlio_bench.harness.simulator.kernel import Link
from dlio_bench.harness.simulator.model import NEVER, Costs, Crowd, Floats, Outcome

FILL, STAGE, TRAIN, END = range(4)  # what happens at an event
NOBODY = -1
Numbers = npt.NDArray[np.int32]
Views = memoryview  # of arrays: indexing one takes a third of the time
Event = tuple[float, int, int, "Node", int]  # moment, turn, what, node, tier


class Represented(Struct, frozen=True):
    """The samples of nodes that a simulated node represents: ids int32 [rows, represented nodes], -1: none.

    When the node has fetched its n-th kept sample, each represented node has its sample in row rows[n] of ids, too;
    none if rows[n], int32 [kept samples of the node], is -1.
    """

    ids: Numbers
    rows: Numbers


class Node:
    """One node. `ready`: when each access is staged, from the trainer's next to the last that threads have begun."""

    def __init__(self, number: int, ids: Integers, keeps: NodeContents, samples: int, costs: Costs, link: Link) -> None:
        self.number, self.link = number, link
        self.ids = memoryview(np.ascontiguousarray(ids, np.int32))
        self.kept = keeps.ids
        place = np.full(samples, NOBODY, np.int32)
        place[self.kept] = np.arange(len(self.kept))
        self.slots = memoryview(place[ids])  # for each access the number of the kept sample, or NOBODY
        lengths = [len(tier) for tier in keeps.tiers]
        self.tiers = np.repeat(np.arange(len(lengths), dtype=np.int8), lengths).tobytes()
        self.copies = np.concatenate(keeps.copies).tobytes() if lengths else b""
        self.done = array("d", [NEVER]) * len(self.kept)
        starts = np.cumsum([0, *lengths])
        self.cursor = starts[:-1].tolist()  # for each tier, what its threads fetch next
        self.ends = starts[1:].tolist()
        self.ready: deque[float] = deque()
        self.staged = 0  # accesses that threads have begun
        self.free, self.used = costs.staging, 0.0  # MB of the buffer; used: what the end of the batch frees
        self.parked = 0  # threads that wait for room in the buffer
        self.clock, self.at, self.batch_end = 0.0, 0, 0  # of the trainer: its time, its next access
        self.waits = False
        self.stall = self.taken = 0.0  # taken: MB of the batch
        self.read = [0.0] * (len(costs.local) + 2)
        self.filled = [0.0, 0.0]  # MB by the threads that fill tiers: from other nodes, from the PFS


class Engine:
    """All simulated nodes of a job, on one clock."""

    def __init__(
        self,
        sequences: Sequence[Integers],
        keeps: Sequence[NodeContents],
        sizes: Floats,
        behaviour: Behaviour,
        costs: Costs,
        represented: Sequence[Represented] = (),
    ) -> None:
        self.behaviour, self.costs = behaviour, costs
        self.represented = [(nodes.ids, memoryview(nodes.rows)) for nodes in represented]
        self.sizes = memoryview(np.ascontiguousarray(sizes))
        tiers, samples = len(costs.local), len(sizes)
        nothing = from_file_system([np.empty(0, np.int64)] * tiers)
        self.nodes = [
            Node(number, ids, keeps[number] if keeps else nothing, samples, costs, Link(1 / costs.worst_pfs))
            for number, ids in enumerate(sequences)
        ]
        self.pfs, self.remote = tiers + 1, tiers  # their numbers in Node.read
        self.others = min(costs.remote, default=NEVER) if keeps else NEVER  # the least cost of another node's tier
        # for each tier and sample, from when on some node has it there (the last entry takes the -1 of Represented)
        self.known = [np.full(samples + 1, NEVER) for _ in range(tiers)] if keeps else []
        self.there = [memoryview(known) for known in self.known]
        self.holders = self._holders(samples) if keeps and not behaviour.guesses else None
        self.events: list[Event] = []
        self.turn = 0

    def _holders(self, samples: int) -> tuple[Views, Views]:
        """For each sample, the node that holds it and its number among the samples that the node keeps."""
        holder, place = np.full(samples, NOBODY, np.int32), np.full(samples, NOBODY, np.int32)
        for node in self.nodes:
            first = np.flatnonzero(~np.frombuffer(node.copies, bool))
            holder[node.kept[first]], place[node.kept[first]] = node.number, first
        return memoryview(holder), memoryview(place)

    def fill_first(self) -> float:
        """Fill all tiers before the first step, copies last. Returns the seconds that it takes."""
        self._start_filling()
        end = 0.0
        while self.events:
            now, _, _, node, tier = heapq.heappop(self.events)
            end = max(end, now)
            self._fill(node, tier, now, copies=True)
        for node in self.nodes:
            node.link = Link(node.link.rate)
            node.done = array("d", bytes(8 * len(node.done)))  # all filled before the run
        for known in self.known:
            known[np.isfinite(known)] = 0.0
        return end

    def run(self, batch: int, start: float, crowd: Crowd | None, *, filled: bool) -> Outcome:
        """Run all nodes in local batches of `batch`. `filled`: the tiers are full."""
        total = len(self.nodes[0].ids)
        clock, step, arrived = start, 0, 0
        ends = np.zeros(len(self.nodes))
        for node in self.nodes:
            if self.behaviour.ahead:
                for _ in range(self.costs.staging_threads):
                    self._push(start, STAGE, node)
            node.clock, node.batch_end = start, batch
            self._push(start, TRAIN, node)
        if not filled:
            self._start_filling()
        while step < total // batch:
            now, _, what, node, tier = heapq.heappop(self.events)
            if what == STAGE:
                self._stage(node, now)
            elif what == FILL:
                self._fill(node, tier, now, copies=False)
            elif what == TRAIN:
                self._train(node, now)
            else:
                node.free, node.used = node.free + node.used, 0.0
                self._unpark(node, now)
                ends[node.number] = now
                arrived += 1
                if arrived < len(self.nodes):
                    continue
                clock = now if crowd is None else self._crowd_end(crowd, step, clock, ends, batch)
                step, arrived = step + 1, 0
                for node in self.nodes:
                    node.clock, node.taken = clock, 0.0
                    node.batch_end += batch
                    self._push(clock, TRAIN, node)
        stalls, read = np.array([node.stall for node in self.nodes]), np.array([node.read for node in self.nodes])
        return Outcome(clock, stalls, read)

    def _crowd_end(self, crowd: Crowd, step: int, start: float, ends: Floats, batch: int) -> float:
        taken = np.array([node.taken for node in self.nodes])
        return crowd.end(step, start, ends, taken, self.costs.batch_seconds(float(crowd.largest[step]), batch))

    def _push(self, moment: float, what: int, node: Node, tier: int = 0) -> None:
        self.turn += 1
        heapq.heappush(self.events, (moment, self.turn, what, node, tier))

    def _start_filling(self) -> None:
        for node in self.nodes:
            for tier, threads in enumerate(self.costs.threads):
                for _ in range(threads):
                    self._push(0.0, FILL, node, tier)

    def _fill(self, node: Node, tier: int, now: float, *, copies: bool) -> None:
        """One of a tier's threads fetches the next sample that no thread has begun, or ends if there is none."""
        slot, end = node.cursor[tier], node.ends[tier]
        while slot < end and (node.done[slot] < NEVER or (node.copies[slot] and not copies)):
            slot += 1
        node.cursor[tier] = slot + 1
        if slot >= end:
            return
        size = self.sizes[node.kept[slot]]
        if node.copies[slot]:
            until = now + size * (self.costs.remote[tier] + self.costs.write)
            self._keep(node, slot, until)
            node.filled[0] += size
        else:
            until = self._fetch_kept(node, slot, size, now)
            node.filled[1] += size
        self._push(until, FILL, node, tier)

    def _stage(self, node: Node, now: float) -> None:
        """One of a node's staging threads fetches the next access, if the buffer has room for it."""
        total = len(node.ids)
        while node.staged < total:
            access = node.staged
            sample = node.ids[access]
            size = self.sizes[sample]
            if size > node.free:
                node.parked += 1
                break
            node.staged += 1
            end = self._sample_ready(node, sample, node.slots[access], now, pfs=self.behaviour.ahead_pfs)
            node.ready.append(end)
            if end < NEVER:
                node.free -= size
                self._push(end, STAGE, node)
                break
        if node.waits and (node.ready or node.parked == self.costs.staging_threads):
            self._train(node, now)

    def _unpark(self, node: Node, now: float) -> None:
        for _ in range(node.parked):
            self._push(now, STAGE, node)
        node.parked = 0

    def _train(self, node: Node, now: float) -> None:
        """The trainer continues to the end of its batch, until it must wait for a thread, or up to a later read."""
        clock, sizes, ids, ready, costs = node.clock, self.sizes, node.ids, node.ready, self.costs
        node.waits = False
        while node.at < node.batch_end:
            size = sizes[ids[node.at]]
            if ready and ready[0] < NEVER:
                staged = ready.popleft()
                node.used += size
                if staged > clock:
                    node.stall += staged - clock
                    clock = staged
            elif not ready and self.behaviour.ahead and node.parked < costs.staging_threads:
                node.waits, node.clock = True, clock
                return
            elif clock > now:
                node.clock = clock
                self._push(clock, TRAIN, node)
                return
            else:
                if ready:
                    ready.popleft()
                else:
                    node.staged += 1
                served = self._sample_ready(node, ids[node.at], node.slots[node.at], clock, pfs=True)
                node.stall += served - clock
                clock = served
                self._unpark(node, now)
            node.taken += size
            clock += size * costs.compute + costs.sample
            node.at += 1
        node.clock = clock
        self._push(clock, END, node)

    def _sample_ready(self, node: Node, sample: int, slot: int, now: float, *, pfs: bool) -> float:
        """When a thread of `node` that begins now has a sample, preprocessed; NEVER: no readable source has it."""
        costs, size = self.costs, self.sizes[sample]
        best, source = (costs.worst_pfs, self.pfs) if pfs else (NEVER, self.pfs)
        done = node.done[slot] if slot >= 0 else NEVER
        if slot >= 0 and (done < NEVER or not node.copies[slot]):
            tier = node.tiers[slot]
            if done == NEVER:
                node.read[self.pfs] += size
                return self._fetch_kept(node, slot, size, now)
            if done > now or costs.local[tier] < best:
                best, source, now = costs.local[tier], tier, max(done, now)
        if self.others < best:
            for tier, there in enumerate(self.there):
                if costs.remote[tier] < best and there[sample] <= now:
                    best, source = costs.remote[tier], self.remote
            if source == self.pfs and self.holders is not None:
                holder, place = self.holders[0][sample], self.holders[1][sample]
                if holder not in (NOBODY, node.number):
                    other = self.nodes[holder]
                    cost = costs.remote[other.tiers[place]]
                    if cost < best:
                        begun = other.done[place] < NEVER
                        brought = other.done[place] if begun else self._fetch_kept(other, place, size, now)
                        other.filled[1] += 0.0 if begun else size
                        best, source, now = cost, self.remote, max(brought, now)
        if best == NEVER:
            return NEVER
        node.read[source] += size
        end = node.link.reserve(now, size)[1] if source == self.pfs else now + size * best
        end += size * costs.write
        if slot >= 0 and node.done[slot] == NEVER:  # a copy that is kept from now on
            self._keep(node, slot, end)
        return end

    def _fetch_kept(self, node: Node, slot: int, size: float, now: float) -> float:
        """Fetch a kept sample from the PFS. Returns when the node has it."""
        end = node.link.reserve(now, size)[1] + size * self.costs.write
        self._keep(node, slot, end)
        return end

    def _keep(self, node: Node, slot: int, end: float) -> None:
        node.done[slot] = end
        tier, sample = node.tiers[slot], node.kept[slot]
        there = self.there[tier]
        there[sample] = min(there[sample], end)
        if self.represented:
            ids, rows = self.represented[node.number]
            row = rows[slot]
            if row != NOBODY:
                known, samples = self.known[tier], ids[row]
                known[samples] = np.minimum(known[samples], end)


def simulate(
    sequences: Sequence[Integers],
    keeps: Sequence[NodeContents],
    sizes: Floats,
    batch: int,
    behaviour: Behaviour,
    costs: Costs,
    *,
    first: bool = False,
    crowd: Crowd | None = None,
    represented: Sequence[Represented] = (),
) -> tuple[Outcome, tuple[float, float], float]:
    """Run nodes that read `sequences` [accesses each] and keep `keeps` (empty: no tiers); `sizes` [samples] MB.

    `first`: the tiers are filled before the first step. `crowd`, `represented`: of nodes that are not simulated.
    Returns the outcome, the MB that threads which fill tiers read (from other nodes, from the PFS), and the seconds
    before the first step.
    """
    engine = Engine(sequences, keeps, sizes, behaviour, costs, represented)
    before = engine.fill_first() if first else 0.0
    outcome = engine.run(batch, before, crowd, filled=first)
    remote, pfs = np.sum([node.filled for node in engine.nodes], axis=0).tolist()
    return outcome, (remote, pfs), before
