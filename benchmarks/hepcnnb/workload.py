"""HEPCNNB as it was run: batch, what its reader opens, step times."""

from dlio_bench.benchmarks.hepcnnb.decode import decode
from dlio_bench.benchmarks.hepcnnb.layout import layout
from dlio_bench.benchmarks.hepcnnb.model import HEPCNNB_CNN
from dlio_bench.benchmarks.hepcnnb.operations import step_seconds
from dlio_bench.benchmarks.hepcnnb.pipeline import UPSTREAM
from dlio_bench.benchmarks.workload import DERIVED, ESTIMATE, StepTime, Validation, Workload

BATCH = 128
V100_PEAK = 15.7e12  # flop/s in single precision (NVIDIA V100 data sheet, SXM2)
SHARE_OF_PEAK = 0.5  # assumed

HEPCNNB = Workload(
    name="hepcnnb",
    title="HEP-CNN Benchmark",
    variants={"224": layout},
    default_variant="224",
    view=("data", "label", "weight", "normweight", "psr"),  # what binary_classifier_tf.py load_next_file opens
    batch=BATCH,
    batch_source="NERSC/DL-Parallel-IO @290ed4a, hep_cnn/configs/cori_knl_224_adam.json",
    step_times=(
        StepTime(
            device="v100",
            seconds=round(step_seconds(BATCH, V100_PEAK * SHARE_OF_PEAK), 4),
            batch=BATCH,
            kind=ESTIMATE,
            source="operation count of the five convolutions, forward and backward, at an assumed half of the V100's "
            "15.7 TFLOP/s single-precision peak",
        ),
        StepTime(
            device="knl",
            seconds=4.82,
            batch=BATCH,
            kind=DERIVED,
            source="median 'Training Iteration' on 64 Cori KNL nodes, computed from the published traces "
            "(NERSC/DL-Parallel-IO @290ed4a, hep_cnn/results/20180629)",
        ),
    ),
    decode=decode,
    upstream=UPSTREAM,
    validation=Validation(
        every=1,
        forwards=3,  # the loss, the accuracy and the AUC are three runs of the graph
        order=None,  # the validation files are shuffled as the training files are
        source="NERSC/DL-Parallel-IO @290ed4a, hep_cnn/scripts/hep_classifier_tf_train_horovod.py train_loop: a pass "
        "over all validation files of the rank at the end of each epoch",
    ),
    models=(HEPCNNB_CNN,),
)
