"""The policies beyond their order: a placement, when it is filled, and what the reader does with it.

One table for both executors: `readers/` carries rows out on files, `simulator/` on the performance model.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement import cooperative, frequency, redrawn, shares
from dlio_bench.harness.plan.placement.contents import Integers, NodeContents, Sizes

# (sequences of all nodes, sizes, capacities, accesses an epoch) -> what each node keeps
Placement = Callable[[Sequence[Integers], Sizes, Sequence[int], int], list[NodeContents]]
# (epochs, in each what every node reads; nodes, a node, what it reads in each epoch, sizes, capacities) -> what each
# node keeps, the copies of other nodes left out
SeenByNode = Callable[
    [Iterable[Sequence[Integers]], int, int, Iterable[Integers], Sizes, Sequence[int]], list[NodeContents]
]
# (what each node keeps, node, accesses, accesses an epoch, seed) -> the ids that the node reads instead
Redraw = Callable[[Sequence[NodeContents], int, int, int, int], Ids]

LOWER_BOUND, NAIVE, STAGING_POOL = "lower-bound", "naive", "staging-pool"
CLAIRVOYANT, COOPERATIVE = "clairvoyant", "cooperative"


@dataclass(frozen=True)
class Behaviour:
    """What a reader does with a placement.

    Whatever it is, a sample that is not there when it is asked for is read on demand from the fastest source that has
    it, if that is sooner than the reader would deliver it.

    ahead: threads fill the staging buffer in the order of the accesses.
    ahead_remote: they may read from other nodes. ahead_pfs: they may read the PFS; what they may not read is skipped.
    waits: they wait for the copy that is planned, this node's first, instead of reading the PFS beside it.
    guesses: on files, other nodes are asked only for what they are guessed to have by now, and do not fetch what they
    are asked for. (On the model every node knows what others have.)
    """

    ahead: bool
    ahead_remote: bool = False
    ahead_pfs: bool = True
    waits: bool = False
    guesses: bool = False


@dataclass(frozen=True)
class Row:
    """One policy. `first`: its tiers are filled before the first step, with what does not depend on what is read; else
    beside the run, from its start on. `seen`: the placement from epochs that come one at a time, where that is enough.
    """

    name: str
    policy: str  # its name in the policy table, where that differs
    behaviour: Behaviour
    placement: Placement | None = None
    first: bool = False
    redraw: Redraw | None = None
    seen: SeenByNode | None = None


def _plain(place: Callable[[Sequence[Integers], Sizes, Sequence[int]], list[NodeContents]]) -> Placement:
    return lambda own, sizes, capacities, _: place(own, sizes, capacities)


def _opportunistic(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:  # noqa: ARG001 - as Redraw
    return redrawn.opportunistic(contents, node, count, seed)


def _staged_draws(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:  # noqa: ARG001 - as Redraw
    return redrawn.staged_draws(contents, node, count, seed)


_AHEAD = Behaviour(ahead=True)
_ANYWHERE = Behaviour(ahead=True, ahead_remote=True)
_IN_MEMORY = Behaviour(ahead=True, ahead_remote=True, ahead_pfs=False)
_WAITS = Behaviour(ahead=True, ahead_remote=True, waits=True)

_ROWS = (
    Row(NAIVE, "shuffled", Behaviour(ahead=False)),
    Row(STAGING_POOL, "double-buffer", _AHEAD),
    # as published: in the simulator its staging threads read this node's copies or the PFS, and other nodes' only on
    # demand (Boehringer, ETH 2020); its runtime asks other nodes ahead too, where it guesses that they have a sample
    Row(CLAIRVOYANT, CLAIRVOYANT, Behaviour(ahead=True, guesses=True), _plain(frequency.clairvoyant)),
    Row("lbann-dynamic", "lbann-dynamic", _WAITS, _plain(frequency.lbann_dynamic)),
    Row("lbann-preload", "lbann-preload", _ANYWHERE, _plain(shares.lbann_preload), first=True),
    Row("deepio-ordered", "deepio-ordered", _IN_MEMORY, _plain(shares.deepio), first=True),
    Row("deepio-opportunistic", "deepio-opportunistic", _IN_MEMORY, _plain(shares.deepio), True, _opportunistic),
    Row("locality-aware", "locality-aware", _ANYWHERE, _plain(shares.locality_aware), first=True),
    Row("parallel-staging", "parallel-staging", _ANYWHERE, _plain(shares.parallel_staging), True, _staged_draws),
    Row(COOPERATIVE, COOPERATIVE, _ANYWHERE, cooperative.cooperative, seen=cooperative.seen_by_node),
    Row("staged", "staged", _ANYWHERE, _plain(shares.stage_partition), True, redrawn.share_shuffle),
)

KEPT_ON_FILES = tuple(row.name for row in _ROWS if row.placement is not None and row.name != "staged")
ROWS: dict[str, Row] = {row.name: row for row in _ROWS}
OURS = (COOPERATIVE, "staged")  # not among the published rows
POLICIES = (LOWER_BOUND, *ROWS)
