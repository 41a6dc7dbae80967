"""ImageNet as ResNet-50 reads it: batch."""

from dlio_bench.benchmarks.imagenet.decode import decode
from dlio_bench.benchmarks.imagenet.layout import image_bytes, layout, raw_layout
from dlio_bench.benchmarks.imagenet.model import RESNET_50
from dlio_bench.benchmarks.imagenet.pipeline import UPSTREAM, UPSTREAM_RAW
from dlio_bench.benchmarks.workload import Expected, Validation, Workload

IMAGENET = Workload(
    name="imagenet",
    title="ImageNet for ResNet-50",
    variants={"tfrecord": layout, "raw": raw_layout},
    default_variant="tfrecord",
    view=("record",),
    batch=64,
    batch_source="argonne-lcf/dlio_benchmark @e1919d7, configs/workload/resnet50_v100.yaml",
    decode=decode,
    upstream=UPSTREAM,
    variations={"raw": {"upstream": UPSTREAM_RAW}},
    validation=Validation(
        every=1,
        forwards=1,
        order="buffered-shuffle(1)",  # sharded, not shuffled
        source="tensorflow/models, official ResNet: validation_freq=epochs_between_evals, 1 by default; shuffled in "
        "training alone",
    ),
    models=(RESNET_50,),
    expected=Expected(of_raw=0.85, cpu_us=25.0),  # of records of 115 KB
    sample_bytes=image_bytes,
)
