"""CosmoFlow as MLPerf Storage runs it: batch."""

from dlio_bench.benchmarks.cosmoflow.decode import decode
from dlio_bench.benchmarks.cosmoflow.layout import mlperf_v07, mlperf_v1, original, sc18
from dlio_bench.benchmarks.cosmoflow.model import COSMOFLOW_MLPERF, COSMOFLOW_ORIGINAL, COSMOFLOW_SC18
from dlio_bench.benchmarks.cosmoflow.pipeline import UPSTREAM, UPSTREAM_QUEUES
from dlio_bench.benchmarks.workload import Expected, Validation, Workload

COSMOFLOW = Workload(
    name="cosmoflow",
    title="CosmoFlow",
    variants={"mlperf-v1": mlperf_v1, "mlperf-v0.7": mlperf_v07, "sc18": sc18, "original-64": original},
    default_variant="mlperf-v1",
    view=("record",),
    batch=1,
    batch_source="argonne-lcf/dlio_benchmark @e1919d7 and mlcommons/storage @caa90c9, "
    "configs/workload/cosmoflow_v100.yaml",
    decode=decode,
    upstream=UPSTREAM,
    validation=Validation(
        every=1,
        forwards=1,
        order="buffered-shuffle(1)",  # sharded, not shuffled
        source="sparticlesteve/cosmoflow-benchmark, data/cosmo.py (shuffle_valid=False), and Keras' fit, which "
        "validates after each epoch",
    ),
    variations={name: {"upstream": UPSTREAM_QUEUES} for name in ("sc18", "original-64")},
    models=(COSMOFLOW_MLPERF, COSMOFLOW_SC18, COSMOFLOW_ORIGINAL),
    expected=Expected(variant="sc18"),  # which is not compressed
)
