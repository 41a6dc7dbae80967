"""The published simulator's own habits, which only `--pfs-clients published` has.

They were observed from the tables printed in Boehringer's thesis (ETH, 2020) and on its slides, which they
regenerate. None is a property of a policy or of a machine:

* Nodes are simulated one after another within a step, and the readers of the PFS are counted by log: another node reads
  at a moment when its log has an entry at that moment or later. So the first node mostly reads alone, and the last one
  finds up to all others reading.
* A node has two logs: of consumption (reads on demand, and samples consumed that were staged from the PFS), and of
  fetches into the staging buffer. `clairvoyant` logs its first fetches into its tiers, too.
* One counter deals the fetches of all nodes to their threads.
* `clairvoyant` never keeps the last sample id. Its frequency order is cut by the staging buffer's size before the
  tiers' sizes; this first block is fetched by the threads of the first tier, and no tier fetches before it is there.
  That the others wait, and that the first block's fetches alone count as reading, is inferred from what was published:
  the distances to the bound in scenarios S1 to S4 (6.6, 0.27, 0.08 and 10.5 %) come out within 0.3, 0.01, 0.03 and
  0.2 percentage points. With the fetches of all tiers counted, S3 and S4 come out 1 point too slow; with the second
  tier fetching beside the first block, S2 comes out half as far from the bound.
* A sample that the staging buffer has held before takes no room in it when it comes again.
* The stall before the first step is the last node's, not the slowest one's.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dlio_bench.harness.plan.placement.frequency import counted
from dlio_bench.harness.plan.placement.keeps import Integers, Keeps, Sizes, cut, from_file_system
from dlio_bench.harness.simulator.fills import Fill
from dlio_bench.harness.simulator.traces import Trace


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
    own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], staging: int
) -> tuple[list[Keeps], list[int]]:
    """The clairvoyant placement with the published cut, and the length of the first block on each node.

    The first block, `staging` bytes of the samples read most often, stands before the rest of the first tier.
    """
    keeps, blocks = [], []
    for node in own:
        ids, counts, first = counted(node)
        kept = ids < len(sizes) - 1
        ids, counts, first = ids[kept], counts[kept], first[kept]
        cuts = cut(np.argsort(-counts, kind="stable"), sizes[ids], (staging, *capacities))
        block, *tiers = [ids[part[np.argsort(first[part], kind="stable")]] for part in cuts]
        keeps.append(from_file_system([np.concatenate([block, tiers[0]]), *tiers[1:]]))
        blocks.append(len(block))
    return keeps, blocks


def behind_first_block(one: Fill, block: int) -> Fill:
    """The fill with the tiers behind the first waiting for its first `block` samples, too."""
    wait = float(one.done[0][:block].max(initial=0.0))
    later = [tuple(times + wait for times in tiers[1:]) for tiers in (one.starts, one.done)]
    return replace(one, starts=(one.starts[0], *later[0]), done=(one.done[0], *later[1]))


def without_room_for_old(one: Trace, ids: Integers) -> Trace:
    """The trace of a node that reads `ids`: only what comes for the first time takes room in the staging buffer."""
    room = np.zeros_like(one.size)
    first = np.unique(ids, return_index=True)[1]
    room[first] = one.size[first]
    return replace(one, room=room)


def first_fetches(fills: Sequence[Fill], blocks: Sequence[int]) -> list[list[float]]:
    """When each node starts to fetch the samples of its first block: `planned` of LoggedClients."""
    return [one.starts[0][:block].tolist() for one, block in zip(fills, blocks, strict=True)]
