"""Which policy a reader's name means: a row of the table, with the axes that were set by hand."""

from dataclasses import replace

from dlio_bench.benchmarks.workload import Workload
from dlio_bench.errors import UsageError
from dlio_bench.harness.plan import policies
from dlio_bench.harness.plan.policies import OWN, Policy
from dlio_bench.harness.plan.shape import Shape

AXES = ("order", "placement", "delivery")


def executed(row: Policy, workload: Workload, shape: Shape) -> Policy:
    """The row as it is carried out on this shape: some published pipelines never leave a rank's only file."""
    own = workload.upstream
    if row.delivery != OWN or own is None or own.with_one_file is None or shape.files // shape.ranks != 1:
        return row
    return replace(row, order=own.with_one_file)


def validation_order(row: Policy, workload: Workload) -> str:
    """The order in which a row goes through the validation split: unshuffled, published pipelines as they did."""
    if row.delivery != OWN or workload.validation is None:
        return "sequential"
    return workload.validation.order or row.order


def spelled(reader: str, order: str | None, placement: str | None, delivery: str | None) -> str:
    """The name of a reader with axes set by hand: 'naive+order=global-shuffle'."""
    asked = zip(AXES, (order, placement, delivery), strict=True)
    return "+".join([reader, *(f"{axis}={value}" for axis, value in asked if value)])


def policy(name: str, workload: Workload) -> Policy:
    """The row that a spelled name means for a workload. UsageError when there is none, or its axes do not fit."""
    reader, *parts = name.split("+")
    axes = policies.axes_of(name, parts)
    own = workload.upstream
    if policies.find(reader).delivery != OWN:
        return policies.resolve(reader, **axes)
    if own is None:
        raise UsageError(f"Workload '{workload.name}' has no published pipeline. Choose another --reader.")
    order = axes.get("order", own.order)
    if order not in own.orders and order.partition("(")[0] not in own.orders:  # with a buffer of another size
        raise UsageError(
            f"The published pipeline of {workload.name} has no order '{order}'. Its orders: {', '.join(own.orders)}."
        )
    return replace(policies.resolve(reader, **axes, own_order=own.order), order_known=own.order_known)
