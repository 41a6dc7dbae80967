"""How long an all-reduce of gradients takes on the alpha-beta model: a message of n bytes takes alpha + n * beta.

alpha is a latency, beta the seconds of a byte; links do not disturb each other, and adding up takes no time. Sources:
R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 19(1), 2005,
for the model and trees; P. Patarasuk, X. Yuan, Bandwidth Optimal All-Reduce Algorithms for Clusters of Workstations,
JPDC 69(2), 2009, for the ring; streichler/horovod @f3e9487, horovod/common/hybrid_allreduce.cc:14-67, for the way by
node, of SC'18's climate run.
"""

from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import MB, System
from dlio_bench.reports.simulation.control_tree import Sum, Sums


def ring(ranks: int, nbytes: float, alpha: float, rate: float) -> float:
    """Seconds of a ring: every rank sends 2 (ranks - 1) messages, each a part of `nbytes`. rate: bytes/s, 1 / beta."""
    return 2 * (ranks - 1) * (alpha + nbytes / ranks / rate)


def tree(ranks: int, nbytes: float, alpha: float, rate: float) -> float:
    """Seconds of a binomial tree: all of `nbytes` goes up to one rank and down again, level by level."""
    return 2 * (ranks - 1).bit_length() * (alpha + nbytes / rate)


def by_node(nodes: int, leaders: int, nbytes: float, system: System) -> float:
    """Seconds of rings within the nodes, then rings between them: one for each of `leaders` and its part, handed back.

    A leader sends by a network interface of its own, or shares one where there are fewer; within a node alpha is 0.
    """
    inside = system.within * MB
    between = ring(nodes, nbytes / leaders, system.latency, system.network * MB / max(leaders, system.interfaces))
    return ring(system.ranks_per_node, nbytes, 0.0, inside) + between + nbytes / inside


def all_reduce_sums(ranks: int, nbytes: int, system: System, step_seconds: float | None) -> Sums:
    """The document's part for `nbytes` of gradients: one ring, one tree, by node with every number of leaders.

    One ring or tree sends by one interface of a node at a time. step_seconds: compute of a step; with a lag the
    all-reduce hides behind it. UsageError where the ranks do not fill two nodes.
    """
    nodes, rest = divmod(ranks, system.ranks_per_node)
    if rest or nodes < 2 or not system.network:
        raise UsageError(
            f"--all-reduce: {ranks} ranks do not fill two or more nodes of system '{system.name}', which have "
            f"{system.ranks_per_node} each, or it has no rate of the network. Give another --control-tree or --system."
        )
    rate = system.network * MB / system.interfaces
    whole = (ranks, nbytes, system.latency, rate)
    ways = [Sum(way="ring", leaders=0, seconds=ring(*whole)), Sum(way="tree", leaders=0, seconds=tree(*whole))]
    ways += [
        Sum(way="by node", leaders=leaders, seconds=by_node(nodes, leaders, nbytes, system))
        for leaders in range(1, system.ranks_per_node + 1)
    ]
    if step := step_seconds:
        ways = [replace(way, kept=step / (step + way.seconds), kept_lagged=min(1, step / way.seconds)) for way in ways]
    guessed = [key for key in system.estimated if key in ("latency", "interfaces", "within", "network")]
    return Sums(system=system.name, nbytes=nbytes, step_seconds=step_seconds, estimated=guessed, ways=ways)
