"""The one table of policies: a policy is a row order x placement x delivery. Readers execute rows, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import ORDERS, Order, find_order
from dlio_bench.harness.plan.placement.rows import KEPT_ON_FILES, ROWS
from dlio_bench.harness.plan.staging import STAGED
from dlio_bench.refusals import unknown

NOPFS = "Dryden et al., Clairvoyant Prefetching for Distributed Machine Learning I/O, SC'21"
DEEPIO = "Zhu et al., Entropy-Aware I/O Pipelining for Large-Scale Deep Learning on HPC Systems, MASCOTS'18"
LBANN = "Jacobs et al., Parallelizing Training of Deep Generative Models on Massive Scientific Datasets, CLUSTER'19"
CLIMATE = "Kurth et al., Exascale Deep Learning for Climate Analytics, SC'18"
LOCALITY = "Yang and Cong, Accelerating Data Loading in Deep Neural Network Training, HiPC'19"

PLACEMENTS = ("none", *STAGED, *KEPT_ON_FILES)
REDRAWN = "redrawn"  # the placement draws the order from what it keeps
OWN = "its own"  # what the application's published pipeline does
DELIVERIES = ("on demand", "ahead", "tf.data", OWN)
# A tf.data pipeline shards and shuffles files, or samples in a buffer: it has no shuffle of all samples, and none that
# depends on what a node keeps.
TF_DATA_ORDERS = ("sequential", "buffered-shuffle", "file-shuffle", "global-file-shuffle")


@dataclass(frozen=True)
class Policy:
    """One row. `exactly_once`: every planned sample once an epoch; `order_known`: a sequence, not a multiset.

    Of `upstream` neither is promised before a workload says what its own pipeline does.
    """

    name: str
    order: str
    placement: str
    delivery: str
    source: str
    exactly_once: bool = True
    order_known: bool = True


_ROWS = (
    Policy("naive", "sequential", "none", "on demand", "the plain loop: open, read, train"),
    Policy("shuffled", "global-shuffle", "none", "on demand", f"'Naive' of {NOPFS}"),
    Policy("double-buffer", "global-shuffle", "none", "ahead", f"'StagingBuffer' of {NOPFS}; tf.data prefetch()"),
    Policy("staged", "node-shuffle", "stage-partition", "ahead", CLIMATE),
    Policy("staged-replicated", "global-shuffle", "stage-replicate", "ahead", CLIMATE),
    Policy("staged-subset", "subset-shuffle", "stage-subset", "ahead", CLIMATE, exactly_once=False),
    Policy("tfdata", "buffered-shuffle", "none", "tf.data", "tf.data: shuffle, map, prefetch", order_known=False),
    Policy("clairvoyant", "global-shuffle", "clairvoyant", "ahead", NOPFS),
    Policy("cooperative", "global-shuffle", "cooperative", "ahead", "this project"),
    Policy("lbann-preload", "global-shuffle", "lbann-preload", "ahead", LBANN),
    Policy("lbann-dynamic", "global-shuffle", "lbann-dynamic", "ahead", LBANN),
    Policy("deepio-ordered", "global-shuffle", "deepio-ordered", "ahead", DEEPIO),
    Policy("deepio-opportunistic", REDRAWN, "deepio-opportunistic", "ahead", DEEPIO, exactly_once=False),
    Policy("locality-aware", "global-shuffle", "locality-aware", "ahead", LOCALITY),
    Policy("parallel-staging", REDRAWN, "parallel-staging", "ahead", f"baseline of {NOPFS}", exactly_once=False),
    Policy("upstream", OWN, OWN, OWN, "each application's published pipeline", exactly_once=False, order_known=False),
)

POLICIES: dict[str, Policy] = {row.name: row for row in _ROWS}

# `prefetch` is the best `ahead` row by measurement (README has it): where the tiers of 4 nodes hold the dataset
# together, `cooperative` takes 0.75 of the time of `double-buffer`, and reads half as much from the file system as
# `clairvoyant`; on storage as fast as memory it leaves its tiers empty, and is within 5 % of reading on demand.
ALIASES: dict[str, str] = {"prefetch": "cooperative"}


def find(name: str) -> Policy:
    """The row of this name or alias, or of a name that `resolve` made: "naive+order=global-shuffle".

    UsageError when there is none.
    """
    base, *replaced = name.split("+")
    if replaced:
        return resolve(base, **axes_of(name, replaced))
    policy = POLICIES.get(ALIASES.get(name, name))
    if policy is None:
        raise unknown("reader", name, [*ALIASES, *POLICIES])
    return policy


def order_of(row: Policy) -> Order:
    """The order that decides how many steps a row has; a placement that draws its own draws as many as all samples."""
    return find_order("global-shuffle" if row.order == REDRAWN else row.order)


def resolve(
    name: str,
    order: str | None = None,
    placement: str | None = None,
    delivery: str | None = None,
    own_order: str | None = None,
) -> Policy:
    """The row of this name with axes replaced by hand; its name tells which ("naive+order=global-shuffle").

    own_order: the order of the workload's own pipeline; `upstream` has it where no other is asked for, and its name
    stays as it is. Whether the workload knows the order that is asked for, the workload must say.
    What a policy promises follows from its axes: exactly_once from the order, order_known from the delivery (tf.data
    and published pipelines may deliver an epoch as a multiset). UsageError for names that do not exist and for axes
    that make no sense together.
    """
    row = find(name)
    if row.delivery == OWN and own_order is not None:
        found = find_order(own_order)
        row = replace(row, order=found.name, exactly_once=found.exactly_once)
    asked: dict[str, str] = {}
    if order is not None and not _same_order(order, row.order):
        asked["order"] = find_order(order).name
    if placement is not None and placement != row.placement:
        asked["placement"] = _known("placement", placement, PLACEMENTS)
    if delivery is not None and delivery.replace("-", " ") != row.delivery:
        asked["delivery"] = _known("delivery", delivery.replace("-", " "), DELIVERIES)
    if not asked:
        return row
    marks = [f"{axis}={value.replace(' ', '-')}" for axis, value in asked.items()]
    policy = replace(
        row,
        name="+".join([row.name, *marks]),
        order=asked.get("order", row.order),
        placement=asked.get("placement", row.placement),
        delivery=asked.get("delivery", row.delivery),
    )
    _require_sense(row, policy, asked)
    if policy.order == OWN:
        return policy
    return replace(
        policy,
        exactly_once=policy.order != REDRAWN and find_order(policy.order).exactly_once,
        order_known=policy.delivery not in {"tf.data", OWN},
    )


def _require_sense(row: Policy, policy: Policy, asked: dict[str, str]) -> None:
    """UsageError naming the fix, for axes that do not go together."""
    order, placement, delivery = _kind(policy.order), policy.placement, policy.delivery
    if row.delivery == OWN and set(asked) - {"order"}:
        raise UsageError(
            f"Reader '{row.name}' is the application's published pipeline, which has its own placement and delivery. "
            f"Leave out --placement and --delivery, or use another reader (such as prefetch) with --order."
        )
    if delivery == OWN:
        if row.delivery != OWN:
            raise UsageError("Only reader 'upstream' has a delivery of its own. Use --reader upstream.")
        return
    if delivery == "tf.data" and placement != "none":
        raise UsageError(
            f"A tf.data pipeline reads where the dataset lies, so it cannot go with placement {placement}. Use "
            "--placement none, or --delivery ahead."
        )
    if delivery == "tf.data" and order not in TF_DATA_ORDERS:
        raise UsageError(
            f"A tf.data pipeline cannot deliver the order {policy.order}. Use one of {', '.join(TF_DATA_ORDERS)}, or "
            "--delivery ahead."
        )
    for kept, needed in (("stage-partition", "node-shuffle"), ("stage-subset", "subset-shuffle")):
        if placement == kept and order != needed:
            raise UsageError(
                f"With placement {kept} a node keeps a part of the files, but the order {policy.order} asks it for "
                f"others. Use --order {needed}, or --placement stage-replicate."
            )

    draws = placement in ROWS and ROWS[placement].redraw is not None
    if draws != (order == REDRAWN):
        if draws:
            raise UsageError(
                f"Placement {placement} draws the order from what it keeps, so it cannot go with {policy.order}. Leave "
                "out --order."
            )
        raise UsageError(
            f"Reader '{row.name}' has no order but that which its placement draws. Use --order global-shuffle with "
            f"placement {placement}."
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


def _same_order(asked: str, of_row: str) -> bool:
    return asked == of_row or (_kind(of_row) in ORDERS and find_order(asked).name == find_order(of_row).name)


def _known(axis: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise unknown(axis, value, known)
    return value
