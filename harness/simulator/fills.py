"""When each tier has its samples, by sample and by access: its threads fill it from the start of the run."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.harness.plan.placement.rule import Integers, NodeContents
from dlio_bench.harness.simulator.model import Costs, Floats

Tiers = npt.NDArray[np.int8]
NEVER = np.inf


class Fill(Struct, frozen=True):
    """How one node fills its tiers. starts[j], done[j]: when the fetch of each id of keeps.tiers[j] starts and ends."""

    keeps: NodeContents
    starts: tuple[Floats, ...]
    done: tuple[Floats, ...]
    read_pfs: float  # MB taken from the PFS
    read_remote: float  # MB taken from other nodes

    @property
    def end(self) -> float:
        """Seconds until the last tier is full."""
        return max((float(done.max()) for done in self.done if len(done)), default=0.0)

    def at_once(self) -> "Fill":
        """The same tiers, all full at time 0."""
        return replace(self, done=tuple(np.zeros_like(done) for done in self.done))


def round_robin(seconds: Floats, threads: int, clocks: Floats | None = None) -> tuple[Floats, Floats]:
    """Start and end of tasks that go to `threads` threads in turn; task n starts when task n - threads ends.

    `clocks` [threads]: when each thread is first free; None: at 0.
    """
    count = len(seconds)
    padded = np.zeros((-(-count // threads), threads))
    padded.reshape(-1)[:count] = seconds
    ends = np.cumsum(padded, axis=0) + (0.0 if clocks is None else clocks)
    ends = ends.reshape(-1)[:count]
    return ends - seconds, ends


def fill(keeps: NodeContents, sizes: Floats, costs: Costs) -> Fill:
    """Fill a node's tiers from time 0, each by its own threads, all nodes reading the PFS (gamma = N).

    `sizes` [samples] MB. A copy comes from the same tier of another node. All nodes fetch copies after everything that
    comes from the PFS, so that no node waits for the holder of a copy.
    """
    starts, done, pfs, remote = [], [], 0.0, 0.0
    for tier, (ids, copies) in enumerate(zip(keeps.tiers, keeps.copies, strict=True)):
        size = sizes[ids]
        cost = np.where(copies, costs.remote[tier], costs.worst_pfs) + costs.write
        begin, end = round_robin(size * cost, costs.threads[tier])
        starts.append(begin)
        done.append(end)
        remote += float(size[copies].sum())
        pfs += float(size[~copies].sum())
    return Fill(keeps, tuple(starts), tuple(done), pfs, remote)


class Copies(Struct, frozen=True):
    """Where a node finds each sample, and from when on, [samples] each; inf: never.

    local_done: in this node's tier local_tier (0 if the node does not keep it). remote_done[j]: in tier j of any other.
    """

    local_done: Floats
    local_tier: Tiers
    remote_done: tuple[Floats, ...]


def local_copies(node_fill: Fill, samples: int) -> tuple[Floats, Tiers]:
    """`local_done` and `local_tier` of Copies."""
    done, place = np.full(samples, NEVER), np.zeros(samples, np.int8)
    for tier, ids in enumerate(node_fill.keeps.tiers):
        done[ids] = node_fill.done[tier]
        place[ids] = tier
    return done, place


def all_copies(fills: Sequence[Fill], samples: int) -> list[Copies]:
    """Copies for each node."""
    tiers = len(fills[0].keeps.tiers)
    # The two earliest holders are enough: the earliest that is not this node is one of them.
    first = np.full((tiers, samples), NEVER)
    second = np.full((tiers, samples), NEVER)
    holder = np.full((tiers, samples), -1, np.int32)
    for node, node_fill in enumerate(fills):
        for tier, (ids, done) in enumerate(zip(node_fill.keeps.tiers, node_fill.done, strict=True)):
            _offer(first[tier], second[tier], holder[tier], node, ids, done)
    copies = []
    for node, node_fill in enumerate(fills):
        remote = tuple(np.where(holder[tier] == node, second[tier], first[tier]) for tier in range(tiers))
        copies.append(Copies(*local_copies(node_fill, samples), remote))
    return copies


def _offer(
    first: Floats, second: Floats, holder: npt.NDArray[np.int32], node: int, ids: Integers, done: Floats
) -> None:
    earlier = done < first[ids]
    second[ids] = np.where(earlier, first[ids], np.minimum(second[ids], done))
    first[ids] = np.where(earlier, done, first[ids])
    holder[ids] = np.where(earlier, node, holder[ids])


class Trace(Struct, frozen=True):
    """One node's accesses, [accesses] each: `size` in MB, the rest as in Copies.

    room: MB that each takes in the staging buffer, if that is not its size.
    """

    size: Floats
    local_done: Floats
    local_tier: Tiers
    remote_done: tuple[Floats, ...]
    room: Floats | None = None


def trace(ids: Integers, sizes: Floats, copies: Copies | None, tiers: int) -> Trace:
    """The trace of a node that reads `ids` in this order; copies None: every sample is only on the PFS."""
    if copies is None:
        never = np.full(len(ids), NEVER)
        return Trace(sizes[ids], never, np.zeros(len(ids), np.int8), (never,) * tiers)
    remote = tuple(done[ids] for done in copies.remote_done)
    return Trace(sizes[ids], copies.local_done[ids], copies.local_tier[ids], remote)
