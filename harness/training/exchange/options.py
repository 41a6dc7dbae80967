"""What a gradient exchange may be asked for."""

from itertools import pairwise

from msgspec import Struct

from dlio_bench.errors import UsageError, unknown

KINDS = ("horovod", "mpi", "none")

# A rank may come this much later than another: between two exchanges one of them may have to trace a model (some 10 s,
# and on shared cores a minute) or to write a checkpoint to slow storage. Horovod begins to warn after 60 s.
DEFAULT_TIMEOUT = 120.0  # seconds

# What goes out in one all-reduce of MPI: of the size that Horovod fuses (HOROVOD_FUSION_THRESHOLD, 128 MB by default).
DEFAULT_BUFFER = 64 << 20


class ExchangeOptions(Struct, frozen=True):
    """How gradients are exchanged.

    kind: one of KINDS; None takes Horovod where it works, else MPI. fp16: gradients travel as float16, half the bytes.
    lag: 0, or 1 to use the gradients of the step before while those of this one travel. hierarchical: add up within a
    node, then between `leaders` ranks a node, each for a part of the numbers, then pass on within the node;
    `ranks_per_node` neighbours are a node. timeout:
    seconds after which a rank that does not come is given up. buffer_bytes: most that goes into one all-reduce of MPI
    (Horovod has HOROVOD_FUSION_THRESHOLD).
    """

    kind: str | None = None
    fp16: bool = False
    lag: int = 0
    hierarchical: bool = False
    leaders: int = 1
    ranks_per_node: int = 1
    timeout: float = DEFAULT_TIMEOUT
    buffer_bytes: int = DEFAULT_BUFFER


def require_valid(options: ExchangeOptions) -> None:
    """UsageError for what cannot be."""
    if options.kind is not None and options.kind not in KINDS:
        raise unknown("--exchange", options.kind, KINDS)
    if options.lag not in (0, 1):
        raise UsageError(f"A gradient lag of {options.lag} steps is not offered: use 0, or 1 as in the climate run.")
    if not 0 < options.timeout < float("inf"):
        raise UsageError(f"A gradient exchange cannot be over after {options.timeout:g} s. Allow more than 0, not inf.")
    if options.leaders < 1:
        raise UsageError(f"--leaders {options.leaders}: at least one rank of a node talks to other nodes.")
    if options.leaders > 1 and not options.hierarchical:
        raise UsageError(
            f"--leaders {options.leaders} says how many ranks of a node talk to other nodes, which --hierarchical "
            "alone does. Add --hierarchical, or leave --leaders out."
        )
    if options.leaders > options.ranks_per_node:
        raise UsageError(
            f"--leaders {options.leaders} is more than the {options.ranks_per_node} ranks of a node that exchange "
            "gradients. Use fewer leaders, or more ranks per node."
        )
    if options.buffer_bytes < 4:
        raise UsageError(
            f"Exchange buffers of {options.buffer_bytes} B hold no number. Use at least 4 B, best some MiB "
            f"(default {DEFAULT_BUFFER >> 20} MiB)."
        )


def levels(options: ExchangeOptions, ranks: int) -> bool:
    """Whether the hierarchical way differs from the flat one: several nodes with several ranks each."""
    return options.hierarchical and 1 < options.ranks_per_node < ranks


# The hierarchical all-reduce: which ranks of a node talk to other nodes, and which part of the numbers each adds up.
#
# Source: Kurth et al., Exascale Deep Learning for Climate Analytics, SC'18, and the Horovod of its authors,
# horovod/common/hybrid_allreduce.cc: on Summit four of six ranks a node, one for each virtual network interface.

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

    def leader_of_part(self, node: int, number: int) -> int:
        """The rank that leads part `number`: spread evenly, as 0, 1, 3 and 4 of six, two of each processor."""
        ranks = self.ranks(node)
        return ranks[number * len(ranks) // self.leaders]

    def part_led_by(self, rank: int) -> int | None:
        """The part that a rank leads, if it leads one."""
        node = self.node_of(rank)
        return next((number for number in range(self.leaders) if self.leader_of_part(node, number) == rank), None)

    def among_leaders(self, number: int) -> list[int]:
        """The leaders of part `number`, one of each node."""
        return [self.leader_of_part(node, number) for node in range(len(self.bounds) - 1)]


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
