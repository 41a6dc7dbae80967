"""HEPCNNB as it was run: batch, what its reader opens."""

from dlio_bench.benchmarks.hepcnnb.decode import decode
from dlio_bench.benchmarks.hepcnnb.gan import HEPGAN
from dlio_bench.benchmarks.hepcnnb.layout import layout
from dlio_bench.benchmarks.hepcnnb.model import HEPCNNB_CNN
from dlio_bench.benchmarks.hepcnnb.pipeline import UPSTREAM
from dlio_bench.benchmarks.workload import Validation, Workload

BATCH = 128

HEPCNNB = Workload(
    name="hepcnnb",
    title="HEP-CNN Benchmark",
    variants={"224": layout},
    default_variant="224",
    view=("data", "label", "weight", "normweight", "psr"),  # what binary_classifier_tf.py load_next_file opens
    labels=("label", "weight", "normweight", "psr"),
    batch=BATCH,
    batch_source="NERSC/DL-Parallel-IO @290ed4a, hep_cnn/configs/cori_knl_224_adam.json",
    decode=decode,
    upstream=UPSTREAM,
    validation=Validation(
        every=1,
        forwards=3,  # the loss, the accuracy and the AUC are three runs of the graph
        order=None,  # the validation files are shuffled as the training files are
        source="NERSC/DL-Parallel-IO @290ed4a, hep_cnn/scripts/hep_classifier_tf_train_horovod.py train_loop: a pass "
        "over all validation files of the rank at the end of each epoch",
    ),
    models=(HEPCNNB_CNN, HEPGAN),
)
