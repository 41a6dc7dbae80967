"""CosmoFlow as MLPerf Storage runs it: batch and step times."""

from dlio_bench.benchmarks.cosmoflow.decode import decode
from dlio_bench.benchmarks.cosmoflow.layout import mlperf_v07, mlperf_v1, sc18
from dlio_bench.benchmarks.cosmoflow.model import COSMOFLOW_MLPERF, COSMOFLOW_SC18
from dlio_bench.benchmarks.cosmoflow.pipeline import UPSTREAM
from dlio_bench.benchmarks.workload import PUBLISHED, StepTime, Validation, Workload

_SOURCE = "argonne-lcf/dlio_benchmark @e1919d7 and mlcommons/storage @caa90c9, configs/workload/cosmoflow_{}.yaml"

COSMOFLOW = Workload(
    name="cosmoflow",
    title="CosmoFlow",
    variants={"mlperf-v1": mlperf_v1, "mlperf-v0.7": mlperf_v07, "sc18": sc18},
    default_variant="mlperf-v1",
    view=("record",),
    batch=1,
    batch_source=_SOURCE.format("v100"),
    step_times=(
        StepTime("v100", 0.00936, 1, PUBLISHED, _SOURCE.format("v100")),
        StepTime("a100", 0.00551, 1, PUBLISHED, _SOURCE.format("a100")),
        StepTime("h100", 0.00350, 1, PUBLISHED, _SOURCE.format("h100")),
    ),
    decode=decode,
    upstream=UPSTREAM,
    validation=Validation(
        every=1,
        forwards=1,
        order="buffered-shuffle(1)",  # sharded, not shuffled
        source="sparticlesteve/cosmoflow-benchmark, data/cosmo.py (shuffle_valid=False), and Keras' fit, which "
        "validates after each epoch",
    ),
    models=(COSMOFLOW_MLPERF, COSMOFLOW_SC18),
)
