"""Habits of the published simulator, which only `--pfs-clients published` has.

They are inferred from the tables in Boehringer's thesis (ETH, 2020) and its slides, which they reproduce. None is a
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

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from dlio_bench.harness.plan.placement.frequency import count_accesses
from dlio_bench.harness.plan.placement.rule import Integers, NodeContents, Sizes, cut_into_tiers, from_file_system
from dlio_bench.harness.simulator.fills import Fill, Trace

CLAIRVOYANT = "clairvoyant"  # the placement that this simulator carries out in its own way
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
        """See stepwise.Clients."""
        self._consumed[node].append(at)

    def fetched(self, node: int, at: float) -> None:
        """See stepwise.Clients."""
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
