"""Turns the name of a reader into a policy: a row of the table, with the axes that the user set."""

from msgspec.structs import replace

from dlio_bench.benchmarks.workload import Workload
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.plan import policies
from dlio_bench.harness.plan.policies import OWN, TF_DATA, Policy
from dlio_bench.harness.plan.shape import Shape

AXES = ("order", "placement", "delivery")


def executed(row: Policy, workload: Workload, shape: Shape) -> Policy:
    """The row with its order on this shape: some pipelines have another order if each rank has only one file."""
    pipeline = workload.upstream
    if row.delivery != OWN or pipeline is None or pipeline.with_one_file is None or shape.files // shape.ranks != 1:
        return row
    return replace(row, order=pipeline.with_one_file)


def validation_order(row: Policy, workload: Workload) -> str:
    """The order in which a row reads the validation split: sequential, or as published if the row is a pipeline."""
    if row.delivery != OWN or workload.validation is None:
        return "sequential"
    return workload.validation.order or row.order


def spelled(reader: str, order: str | None, placement: str | None, delivery: str | None) -> str:
    """The name of a reader with the axes that the user set: 'naive+order=global-shuffle'."""
    axes = zip(AXES, (order, placement, delivery), strict=True)
    return "+".join([reader, *(f"{axis}={value}" for axis, value in axes if value)])


def policy(name: str, workload: Workload) -> Policy:
    """The row that a `spelled` name means for a workload. UsageError if there is none, or if its axes do not fit."""
    reader, *parts = name.split("+")
    axes = policies.axes_of(name, parts)
    pipeline = workload.upstream
    if policies.find(reader).delivery != OWN:
        return policies.resolve(reader, **axes)
    if pipeline is None:
        raise UsageError(f"Workload '{workload.name}' has no published pipeline. Choose another --reader.")
    order = axes.get("order", pipeline.order)
    without_size = order.partition("(")[0]  # of its buffer
    if order not in pipeline.orders and without_size not in pipeline.orders:
        raise UsageError(
            f"The published pipeline of {workload.name} has no order '{order}'. "
            f"Its orders: {', '.join(pipeline.orders)}."
        )
    return replace(policies.resolve(reader, **axes, own_order=pipeline.order), order_known=pipeline.order_known)


def uses_tensorflow(job: Job, row: Policy) -> bool:
    """Whether TensorFlow is at work in a run of a reader: in its network, or in the reader's pipeline."""
    return job.has_network or reads_by_tensorflow(job.application, row)


def reads_by_tensorflow(workload: Workload, row: Policy) -> bool:
    """Whether a reader is a pipeline of tf.data."""
    pipeline = workload.upstream
    return row.delivery == TF_DATA or (row.delivery == OWN and pipeline is not None and pipeline.tensorflow)
