"""The published simulator's own habits, which only `--pfs-clients published` has.

They were observed from the tables printed in Boehringer's thesis (ETH, 2020) and on its slides, which they regenerate. None
is a property of a policy or of a machine:

* Nodes are simulated one after another within a step, and the readers of the PFS are counted by log: another node reads
  at a moment when its log has an entry at that moment or later. So the first node mostly reads alone, and the last one
  finds up to all others reading.
* A node has two logs: of consumption (reads on demand, and samples consumed that were staged from the PFS), and of
  fetches. `clairvoyant` logs all its tiers' fetches before the run, tier by tier, so that the second is not in order
  and the binary search in it is not exact.
* One counter deals the fetches of all nodes to their threads.
* `clairvoyant` never keeps the last sample id; its frequency order is cut by the staging buffer's size first, then by
  the tiers'.
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

    def __init__(self, nodes: int, planned: Sequence[Fill] | None = None) -> None:
        """`planned`: tiers that are filled beside the run, whose fetches are logged from the start."""
        self._consumed: list[list[float]] = [[] for _ in range(nodes)]
        self._fetched: list[list[float]] = [[] for _ in range(nodes)]
        for log, fill in zip(self._fetched, planned or (), strict=False):
            for starts in fill.starts:
                log.extend(starts.tolist())

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


def clairvoyant(own: Sequence[Integers], sizes: Sizes, capacities: Sequence[int], staging: int) -> list[Keeps]:
    """The clairvoyant placement with the published cut: `staging` bytes of the most frequent samples are in no tier."""
    keeps = []
    for node in own:
        ids, counts, first = counted(node)
        kept = ids < len(sizes) - 1
        ids, counts, first = ids[kept], counts[kept], first[kept]
        ranked = np.argsort(-counts, kind="stable")
        tiers = cut(ranked, sizes[ids], (staging, *capacities))[1:]
        keeps.append(from_file_system([ids[tier[np.argsort(first[tier], kind="stable")]] for tier in tiers]))
    return keeps
