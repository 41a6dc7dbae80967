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
  tiers' sizes, and this first block is fetched before the others by the threads of the first tier. Which part of the
  tiers' fetches counts as reading is inferred: with the first block's, the distances to the bound in all four
  scenarios (6.6, 0.27, 0.08 and 10.5 %) come out within 0.25 percentage points; with all of them, S3 and S4 come out
  1 point too slow.
* The stall before the first step is the last node's, not the slowest one's.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from dlio_bench.harness.plan.placement.frequency import counted
from dlio_bench.harness.plan.placement.keeps import Integers, Keeps, Sizes, cut, from_file_system
from dlio_bench.harness.simulator.fills import Fill


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


def first_fetches(fills: Sequence[Fill], blocks: Sequence[int]) -> list[list[float]]:
    """When each node starts to fetch the samples of its first block: `planned` of LoggedClients."""
    return [one.starts[0][:block].tolist() for one, block in zip(fills, blocks, strict=True)]
