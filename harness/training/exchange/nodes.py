"""The hierarchical all-reduce: which ranks of a node talk to other nodes, and which part of the numbers each adds up.

Source: Kurth et al., Exascale Deep Learning for Climate Analytics, SC'18, and the Horovod of its authors,
horovod/common/hybrid_allreduce.cc: on Summit four of six ranks a node, one for each virtual network interface.
"""

from itertools import pairwise

from msgspec import Struct

from dlio_bench.harness.training.exchange.options import ExchangeOptions, levels

GRAIN = 256  # numbers: a part is a multiple of it


class Nodes(Struct, frozen=True):
    """Ranks by node. bounds [nodes + 1]: node n has the ranks from bounds[n] to bounds[n + 1], the last one perhaps
    fewer than the others. leaders: of each node, at most as many as the smallest node has ranks.
    """

    bounds: tuple[int, ...]
    leaders: int

    def node_of(self, rank: int) -> int:
        """The number of a rank's node."""
        return rank // self.bounds[1]

    def ranks(self, node: int) -> range:
        """The ranks of a node."""
        return range(self.bounds[node], self.bounds[node + 1])

    def leader(self, node: int, number: int) -> int:
        """The rank that leads part `number`: spread evenly, as 0, 1, 3 and 4 of six, two of each processor."""
        ranks = self.ranks(node)
        return ranks[number * len(ranks) // self.leaders]

    def leading(self, rank: int) -> int | None:
        """The part that a rank leads, if it leads one."""
        node = self.node_of(rank)
        return next((number for number in range(self.leaders) if self.leader(node, number) == rank), None)

    def among_leaders(self, number: int) -> list[int]:
        """The leaders of part `number`, one of each node."""
        return [self.leader(node, number) for node in range(len(self.bounds) - 1)]


def by_node(options: ExchangeOptions, ranks: int) -> Nodes | None:
    """The nodes of a hierarchical all-reduce; None where the flat one is the same."""
    if not levels(options, ranks):
        return None
    bounds = (*range(0, ranks, options.ranks_per_node), ranks)
    return Nodes(bounds, min(options.leaders, *(end - begin for begin, end in pairwise(bounds))))


def parts(count: int, leaders: int) -> list[slice]:
    """`count` numbers cut into a part for each leader: equal multiples of GRAIN, and the last one has the rest, too.

    Where that leaves nothing for the others, the first one has all. The published code gives the last leader `count mod
    part` numbers more, too few where the rest is larger than a part: of 2,047 numbers four leaders get 256 each, the
    last one 255 more, and 768 stay without a sum. Here the last leader has all that the others do not have.
    """
    part = count // (GRAIN * leaders) * GRAIN
    if not part:
        return [slice(0, count)] + [slice(count, count)] * (leaders - 1)
    ends = [number * part for number in range(leaders)] + [count]
    return [slice(begin, end) for begin, end in pairwise(ends)]
