"""A job of a run, for tests that need any."""

from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.plan.policies import find

JOB = Job(
    options=Options("cdb"), workload="cdb", readers={"prefetch": find("prefetch")}, nodes=2, ranks_per_node=1,
    virtual=True,
    dataset="/data", dataset_digest="sha256:1", code_digest="2", view=("labels",), batch=1, epochs=1, trials=1,
    warmup_trials=1, seed=1, cache="first-epoch-cold", sync="step", node_memory=1000, step_seconds=0.1, threads=1,
    most_threads=1, staging_bytes=10,
    tier_folders=(),
)  # fmt: skip
