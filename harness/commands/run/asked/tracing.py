"""What `run --trace` records beside the step times."""

from typing import TYPE_CHECKING

from dlio_bench.errors import UsageError

if TYPE_CHECKING:
    from dlio_bench.harness.commands.run.asked.job import Job
    from dlio_bench.harness.plan.policies import Policy

SPANS, TENSORFLOW, XPLANE = "spans", "tf", "xplane"
TRACES = {
    SPANS: "what every thread of every rank did, read by read, with file and bytes",
    TENSORFLOW: "besides, what TensorFlow's threads did in the first steps of the last trial",
    XPLANE: "besides, TensorFlow's own file of that, for its tools",
}
STEPS = 100  # that TensorFlow is traced, unless --trace-steps says otherwise


def traces(text: str) -> tuple[str, ...]:
    """The names in `--trace`, in the order of the table, with those that they need. UsageError."""
    names = text.split(",")
    for name in names:
        if name not in TRACES:
            raise UsageError(f"--trace '{name}' is not known. Choose from: {', '.join(TRACES)}.")
    wanted = {SPANS, *names} | ({TENSORFLOW} if XPLANE in names else set())
    return tuple(name for name in TRACES if name in wanted)


def uses_tensorflow(job: "Job", row: "Policy") -> bool:
    """Whether anything of TensorFlow's is at work in a run of a reader: its network, or the reader's pipeline."""
    return job.train is not None or job.infer is not None or reads_by_tensorflow(job.workload, row)


def reads_by_tensorflow(workload: str, row: "Policy") -> bool:
    """Whether a reader is a pipeline of tf.data."""
    from dlio_bench.benchmarks.registry import find
    from dlio_bench.harness.plan.policies import OWN, TF_DATA

    upstream = find(workload).upstream
    return row.delivery == TF_DATA or (row.delivery == OWN and upstream is not None and upstream.tensorflow)
