"""The published simulator's own habits, which only `--pfs-clients published` has.

They were observed from the tables printed in Boehringer's thesis (ETH, 2020) and on its slides, which they
regenerate. None is a property of a policy or of a machine:

* Nodes are simulated one after another within a step, and the readers of the PFS are counted by log: another node reads
  at a moment when its log has an entry at that moment or later. So the first node mostly reads alone, and the last one
  finds up to all others reading.
* A node has two logs: of consumption (reads on demand, and samples consumed that were staged from the PFS), and of
  fetches into the staging buffer. `clairvoyant` logs its first fetches into its tiers, too.
* One counter deals the fetches of all nodes to their threads.
* `clairvoyant` never keeps the last sample id. Before all else its tiers fetch a first block: the samples read most
  often, as many as the staging buffer has bytes for, as far as a tier holds them. Behind it no tier fetches before it
  is there.
  That the others wait, and that the first block's fetches alone count as reading, is inferred from what was published:
  the distances to the bound in scenarios S1 to S4 (6.6, 0.27, 0.08 and 10.5 %) come out within 0.1, 0.02, 0.03 and
  0.1 percentage points. With the fetches of all tiers counted, S3 and S4 come out 1 point too slow; without the wait
  S2 comes out at 0.01 %. A tier holds what its own capacity takes: without tiers the policy is `staging-pool`, and no
  tier makes it slower by being larger.
* A sample that the staging buffer has held before takes no room in it when it comes again.
* The stall before the first step is the last node's, not the slowest one's.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from dlio_bench.harness.plan.placement.contents import Integers, NodeContents, Sizes, cut, from_file_system
from dlio_bench.harness.plan.placement.frequency import counted
from dlio_bench.harness.simulator.fills import Fill
from dlio_bench.harness.simulator.traces import Trace

CLAIRVOYANT = "clairvoyant"  # the placement that it carries out by habits of its own
Block: TypeAlias = tuple[int, ...]  # for each tier, how many of its first samples


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

    def consumed(self, node: int, at: float) -> None:
        """See events.Clients."""
        self._consumed[node].append(at)

    def fetched(self, node: int, at: float) -> None:
        """See events.Clients."""
        self._fetched[node].append(at)


def clairvoyant(
    sequences: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], staging: int
) -> tuple[list[NodeContents], list[Block]]:
    """The clairvoyant placement in the published order of fetching, and each node's first block: how many of each tier.

    A tier holds what its own capacity takes. The first `staging` bytes of the samples read most often stand before all
    others of their tier.
    """
    keeps, blocks = [], []
    for sequence in sequences:
        ids, counts, first = counted(sequence)
        kept = ids < len(sizes) - 1
        ids, counts, first = ids[kept], counts[kept], first[kept]
        ranked = np.argsort(-counts, kind="stable")
        (head,) = cut(ranked, sizes[ids], [staging])
        later = np.ones(len(ids), bool)
        later[head] = False
        tiers = [part[np.lexsort((first[part], later[part]))] for part in cut(ranked, sizes[ids], capacities)]
        keeps.append(from_file_system([ids[part] for part in tiers]))
        blocks.append(tuple(int((~later[part]).sum()) for part in tiers))
    return keeps, blocks


def behind_first_block(fill: Fill, block: Block) -> Fill:
    """The fill with what is behind the first block waiting until all of that block is there."""
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
    """The trace of a node that reads `ids`: only what comes for the first time takes room in the staging buffer."""
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
