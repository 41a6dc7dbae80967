"""The table of policies: order x placement x delivery; the table of placements; and rows mixed by hand.

Both executors use this table: `readers/` on files, `simulator/` on the performance model.
"""

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.errors import UsageError, unknown
from dlio_bench.harness.plan.orders import ORDERS, Order, find_order
from dlio_bench.harness.plan.placement import cooperative, files, frequency, redrawn, shares
from dlio_bench.harness.plan.placement.rule import (
    Behaviour,
    FileCopies,
    Integers,
    KeepSamples,
    NodeContents,
    Placement,
    Sizes,
)

NOPFS = "Dryden et al., Clairvoyant Prefetching for Distributed Machine Learning I/O, SC'21"
DEEPIO = "Zhu et al., Entropy-Aware I/O Pipelining for Large-Scale Deep Learning on HPC Systems, MASCOTS'18"
LBANN = "Jacobs et al., Parallelizing Training of Deep Generative Models on Massive Scientific Datasets, CLUSTER'19"
CLIMATE = "Kurth et al., Exascale Deep Learning for Climate Analytics, SC'18"
GAINARU = "A. Gainaru, WANT workshop at NeurIPS 2023: producers publish samples, trainers subscribe"
LOCALITY = "Yang and Cong, Accelerating Data Loading in Deep Neural Network Training, HiPC'19"

REDRAWN = "redrawn"  # the placement draws the order from what it keeps
OWN = "its own"  # what the application's published pipeline does
ON_DEMAND, AHEAD, TF_DATA, TORCH, WEBDATASET, STREAM = (
    "on demand", "ahead", "tf.data", "torch", "webdataset", "stream"
)  # fmt: skip
DELIVERIES = (ON_DEMAND, AHEAD, TF_DATA, TORCH, WEBDATASET, STREAM, OWN)
# Deliveries that know no copies. SHUFFLING: those that shuffle by themselves, files and samples in a buffer.
LOADERS = {
    TF_DATA: "A tf.data pipeline", TORCH: "PyTorch's DataLoader", WEBDATASET: "WebDataset",
    STREAM: "A producer of streams",
}  # fmt: skip
SHUFFLING = (TF_DATA, WEBDATASET)
MODELLED = (ON_DEMAND, AHEAD)  # deliveries that can be predicted


# ---- placements


def _any_length(keep: Callable[[Sequence[Integers], Sizes, Sequence[int]], list[NodeContents]]) -> KeepSamples:
    """A placement that does not depend on the length of an epoch."""
    return lambda own, sizes, capacities, _: keep(own, sizes, capacities)


_ANYWHERE = Behaviour(ahead_remote=True)
_IN_MEMORY = Behaviour(ahead_remote=True, ahead_pfs=False)
_WAITS = Behaviour(ahead_remote=True, waits=True)
_PARTITION = FileCopies(files.partition, "a share of the dataset to each node")
_REPLICATE = FileCopies(files.replicate, "the whole dataset to each node", by_wants=False)
_SUBSET = FileCopies(files.subset, "random files for each rank to its node", handed_over=True)

_PLACEMENTS = (
    Placement("none"),
    Placement(
        "stage-partition", _any_length(shares.stage_partition), _ANYWHERE, first=True, redraw=redrawn.share_shuffle,
        files=_PARTITION, order="node-shuffle", of_one_node=True,
    ),
    Placement("stage-replicate", files=_REPLICATE),
    Placement("stage-subset", files=_SUBSET, order="subset-shuffle", of_one_node=True),
    # as published: in the simulator its staging threads read this node's copies or the PFS, and other nodes only on
    # demand (Boehringer, ETH 2020); its runtime also asks other nodes ahead, if it guesses that they have a sample
    Placement("clairvoyant", _any_length(frequency.clairvoyant), Behaviour(guesses=True)),
    Placement("lbann-dynamic", _any_length(frequency.lbann_dynamic), _WAITS, of_one_node=True),
    Placement("lbann-preload", _any_length(shares.lbann_preload), _ANYWHERE, first=True),
    Placement("deepio-ordered", _any_length(shares.deepio), _IN_MEMORY, first=True),
    Placement("deepio-opportunistic", _any_length(shares.deepio), _IN_MEMORY, first=True, redraw=redrawn.opportunistic),
    Placement("locality-aware", _any_length(shares.locality_aware), _ANYWHERE, first=True),
    Placement(
        "parallel-staging", _any_length(shares.parallel_staging), _ANYWHERE, first=True, redraw=redrawn.staged_draws
    ),
    Placement("cooperative", cooperative.cooperative, _ANYWHERE, seen=cooperative.seen_by_node),
)  # fmt: skip

PLACEMENTS: dict[str, Placement] = {row.name: row for row in _PLACEMENTS}


# ---- policies


class Policy(Struct, frozen=True):
    """One row. `exactly_once`: every planned sample once an epoch; `order_known`: a sequence, not a multiset.

    `upstream` promises neither until a workload says what its own pipeline does.
    published: its name in the published simulator (`simulate --pfs-clients published`); None: not in there.
    """

    name: str
    order: str
    placement: str
    delivery: str
    source: str
    exactly_once: bool = True
    order_known: bool = True
    published: str | None = None

    @property
    def demanded(self) -> bool:
        """Whether a rank gets the next batch when it asks for one, so that ranks take unequal numbers of steps."""
        return self.delivery == STREAM and not self.order_known

    @property
    def rule(self) -> Placement:
        """The row of its placement; for a published pipeline that of `none`."""
        return PLACEMENTS["none" if self.placement == OWN else self.placement]

    @property
    def behaviour(self) -> Behaviour:
        """What a reader does on the performance model."""
        return replace(self.rule.behaviour, ahead=self.delivery == AHEAD)

    @property
    def simulated(self) -> bool:
        """Whether the simulator can predict it: only a global shuffle, or an order drawn from what nodes keep."""
        shuffles = self.order == "global-shuffle" and self.rule.files is None
        return self.delivery in MODELLED and (shuffles or self.rule.redraw is not None)


_POLICIES = (
    Policy("naive", "sequential", "none", ON_DEMAND, "the plain loop: open, read, train"),
    Policy("shuffled", "global-shuffle", "none", ON_DEMAND, f"'Naive' of {NOPFS}", published="naive"),
    Policy(
        "double-buffer", "global-shuffle", "none", AHEAD, f"'StagingBuffer' of {NOPFS}; tf.data prefetch()",
        published="staging-pool",
    ),
    Policy("clairvoyant", "global-shuffle", "clairvoyant", AHEAD, NOPFS, published="clairvoyant"),
    Policy("lbann-dynamic", "global-shuffle", "lbann-dynamic", AHEAD, LBANN, published="lbann-dynamic"),
    Policy("lbann-preload", "global-shuffle", "lbann-preload", AHEAD, LBANN, published="lbann-preload"),
    Policy("deepio-ordered", "global-shuffle", "deepio-ordered", AHEAD, DEEPIO, published="deepio-ordered"),
    Policy(
        "deepio-opportunistic", REDRAWN, "deepio-opportunistic", AHEAD, DEEPIO, exactly_once=False,
        published="deepio-opportunistic",
    ),
    Policy("locality-aware", "global-shuffle", "locality-aware", AHEAD, LOCALITY, published="locality-aware"),
    Policy(
        "parallel-staging", REDRAWN, "parallel-staging", AHEAD, f"baseline of {NOPFS}", exactly_once=False,
        published="parallel-staging",
    ),
    Policy("cooperative", "global-shuffle", "cooperative", AHEAD, "this project"),
    Policy("staged", "node-shuffle", "stage-partition", AHEAD, CLIMATE),
    Policy("staged-replicated", "global-shuffle", "stage-replicate", AHEAD, CLIMATE),
    Policy("staged-subset", "subset-shuffle", "stage-subset", AHEAD, CLIMATE, exactly_once=False),
    Policy("tfdata", "buffered-shuffle", "none", TF_DATA, "tf.data: shuffle, map, prefetch", order_known=False),
    Policy("torch", "global-shuffle", "none", TORCH, "PyTorch's DataLoader: map-style, worker processes"),
    Policy(
        "webdataset", "buffered-shuffle", "none", WEBDATASET, "WebDataset: tar shards, shuffle buffer, workers",
        order_known=False,
    ),
    Policy("stream", "global-shuffle", "none", STREAM, GAINARU),
    Policy("upstream", OWN, OWN, OWN, "each application's published pipeline", exactly_once=False, order_known=False),
)  # fmt: skip

POLICIES: dict[str, Policy] = {row.name: row for row in _POLICIES}

# `prefetch` is the best `ahead` row by measurement (see README). If the tiers of 4 nodes together hold the dataset,
# `cooperative` takes 0.75 of the time of `double-buffer` and reads half as much from the file system as `clairvoyant`.
# On storage as fast as memory it leaves its tiers empty, and is within 5 % of reading on demand.
ALIASES: dict[str, str] = {"prefetch": "cooperative"}


def find(name: str) -> Policy:
    """The row of a name, an alias, or a name that `resolve` made ("naive+order=global-shuffle"). UsageError."""
    base, *replaced = name.split("+")
    if replaced:
        return resolve(base, **axes_of(name, replaced))
    policy = POLICIES.get(ALIASES.get(name, name))
    if policy is None:
        raise unknown("reader", name, [*ALIASES, *POLICIES])
    return policy


def order_of(row: Policy) -> Order:
    """The order that decides the steps of a row. A placement that draws its order has those of the global shuffle."""
    return find_order("global-shuffle" if row.order == REDRAWN else row.order)


def resolve(
    name: str,
    order: str | None = None,
    placement: str | None = None,
    delivery: str | None = None,
    own_order: str | None = None,
) -> Policy:
    """The row of this name with axes replaced; its new name says which ("naive+order=global-shuffle").

    own_order: the order of the workload's own pipeline, which `upstream` has without `order`; its name then stays. The
    caller checks whether the workload has the order. What a policy promises follows from its axes: exactly_once from
    the order, order_known from the delivery (loaders that shuffle by themselves, and published pipelines, may deliver
    an epoch as a multiset).
    UsageError for unknown names and for axes that do not go together.
    """
    row = find(name)
    if row.delivery == OWN and own_order is not None:
        workload_order = find_order(own_order)
        row = replace(row, order=workload_order.name, exactly_once=workload_order.exactly_once)
    replaced: dict[str, str] = {}
    if order is not None and not _same_order(order, row.order):
        replaced["order"] = find_order(order).name
    if placement is not None and placement != row.placement:
        replaced["placement"] = _require_known("placement", placement, PLACEMENTS)
    if delivery is not None and delivery.replace("-", " ") != row.delivery:
        replaced["delivery"] = _require_known("delivery", delivery.replace("-", " "), DELIVERIES)
    if not replaced:
        return row
    marks = [f"{axis}={value.replace(' ', '-')}" for axis, value in replaced.items()]
    policy = replace(
        row,
        name="+".join([row.name, *marks]),
        order=replaced.get("order", row.order),
        placement=replaced.get("placement", row.placement),
        delivery=replaced.get("delivery", row.delivery),
    )
    _require_sense(row, policy, replaced)
    if policy.order == OWN:
        return policy
    return replace(
        policy,
        exactly_once=policy.order != REDRAWN and find_order(policy.order).exactly_once,
        order_known=policy.delivery not in (*SHUFFLING, OWN),
    )


def _require_sense(row: Policy, policy: Policy, replaced: dict[str, str]) -> None:
    """UsageError naming the fix, for axes that do not go together."""
    order, placement, delivery = _kind(policy.order), policy.placement, policy.delivery
    if row.delivery == OWN and set(replaced) - {"order"}:
        raise UsageError(
            f"Reader '{row.name}' is the application's published pipeline, which has its own placement and delivery. "
            "Leave out --placement and --delivery, or use another reader (such as prefetch) with --order."
        )
    if delivery == OWN:
        if row.delivery != OWN:
            raise UsageError("Only reader 'upstream' has a delivery of its own. Use --reader upstream.")
        return
    if delivery in LOADERS and placement != "none":
        raise UsageError(
            f"{LOADERS[delivery]} reads where the dataset lies, so it cannot go with placement {placement}. Use "
            "--placement none, or --delivery ahead."
        )
    if delivery in SHUFFLING and (order not in ORDERS or not ORDERS[order].tf_data):
        possible = ", ".join(name for name, known in ORDERS.items() if known.tf_data)
        raise UsageError(
            f"{LOADERS[delivery]} cannot deliver the order {policy.order}. Use one of {possible}, or --delivery ahead."
        )
    if policy.rule.order not in (None, order):
        raise UsageError(
            f"With placement {placement} a node keeps a part of the files, but the order {policy.order} needs others, "
            f"too. Use --order {policy.rule.order}, or --placement stage-replicate."
        )
    if policy.rule.draws_order != (order == REDRAWN):
        if policy.rule.draws_order:
            raise UsageError(
                f"Placement {placement} draws the order from what it keeps, so it cannot go with {policy.order}. Leave "
                "out --order."
            )
        raise UsageError(
            f"The placement of reader '{row.name}' draws its order, and placement {placement} draws none. Use --order "
            "global-shuffle with it."
        )


def axes_of(name: str, replaced: Sequence[str]) -> dict[str, str]:
    """The axes of a name that `resolve` made."""
    pairs = [part.partition("=") for part in replaced]
    axes = {axis: value for axis, equals, value in pairs if equals}
    if (
        len(axes) < len(pairs)
        or len({axis for axis, _, _ in pairs}) < len(pairs)
        or not axes.keys() <= {"order", "placement", "delivery"}
    ):
        raise UsageError(
            f"There is no reader '{name}'. Behind a reader's name, +order=..., +placement=... and +delivery=... "
            "replace these three, each at most once."
        )
    return axes


def _kind(order: str) -> str:
    """An order without its number."""
    return order.partition("(")[0]


def _same_order(name: str, row_order: str) -> bool:
    return name == row_order or (_kind(row_order) in ORDERS and find_order(name).name == find_order(row_order).name)


def _require_known(axis: str, value: str, known: Collection[str]) -> str:
    if value not in known:
        raise unknown(axis, value, known)
    return value
