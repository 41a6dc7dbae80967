"""The two networks that segmented climate images, and what they were trained by."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from dlio_bench.benchmarks.cdb import deeplab, tiramisu
from dlio_bench.benchmarks.cdb.decode import FREQUENCIES, USED
from dlio_bench.benchmarks.metrics import confusion_counts, confusion_score
from dlio_bench.benchmarks.model import ALL, HIGHER, Fields, Model, Part, Sample, Tensor
from dlio_bench.benchmarks.schedules import constant
from dlio_bench.datagen.dataset import Dataset

CORI_RATE, DEFAULT_RATE = 1e-5, 1e-4  # run_cori_knl.sh --lr; the default of both training scripts
_NO_DECAY = (
    "The published code declares weight decay and never adds it to its loss; it is left out, and the loss is the same."
)


def sample(dataset: Dataset) -> Sample:
    """Four channels, a label and a weight a pixel, as `decode` delivers them."""
    rows, columns = dataset.manifest.fields[dataset.field_index(["labels"])[0]].shape
    parts = (
        Part("data", "float32", (len(USED), rows, columns)),
        Part("labels", "int32", (rows, columns)),
        Part("weights", "float32", (rows, columns)),
    )
    return Sample(parts, (rows, columns, len(USED)), fields)


def fields(parts: Sequence[Tensor]) -> Fields:
    """Channels go last: processors have no convolution for the delivered order. One copy."""
    from dlio_bench.benchmarks.tensors import tensorflow

    data, labels, weights = parts
    return Fields(tensorflow().transpose(data, (0, 2, 3, 1)), labels, weights)


def loss(outputs: Tensor, given: Fields) -> Tensor:
    """Mean over the pixels of the cross-entropy times the pixel's weight.

    Source: mascarpone-tiramisu-tf-singlefile.py --loss weighted: tf.losses.softmax_cross_entropy(weights=...), which
    divides by the number of weights that are not 0: all of them.
    """
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(given.labels, outputs) * given.weights)


def _larc(rate: float) -> Any:
    from dlio_bench.benchmarks.larc import larc_adam

    return larc_adam(rate)


TIRAMISU = Model(
    name="tiramisu",
    title="Tiramisu",
    source="NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn/semanticsegm/tiramisu-tf/mascarpone-tiramisu-tf-"
    "singlefile.py create_tiramisu, run_cori_knl.sh; Kurth et al., arXiv 1810.01993",
    variants=("cori",),
    published_shape=(768, 1152, 4),
    parameters=5_239_635,
    counted=ALL,
    batch=1,
    epochs=3,  # of the I/O study; 150 by default
    sample=sample,
    network=tiramisu.network,
    loss=loss,
    optimizer=partial(_larc, CORI_RATE),
    rate=constant(CORI_RATE),
    count=confusion_counts,
    score=confusion_score,
    metric="mean_iou",
    better=HIGHER,
    chance=FREQUENCIES[0] / len(FREQUENCIES),  # background everywhere: its share, and 0 for the other two
    notes=(_NO_DECAY, "431 012 of its parameters are a step down that is made and never used."),
)

DEEPLAB = replace(
    TIRAMISU,
    name="deeplab",
    title="DeepLabv3+",
    source="azrael417/ClimDeepLearn @e046f54, semanticsegm/deeplab-tf/deeplab_model.py (resnet_v2_50, deconv1x), "
    "deeplab-tf-train.py; Kurth et al., arXiv 1810.01993",
    published_shape=(768, 1152, 16),
    parameters=43_669_251,
    epochs=150,
    network=deeplab.network,
    optimizer=partial(_larc, DEFAULT_RATE),
    rate=constant(DEFAULT_RATE),
    notes=(
        _NO_DECAY,
        "Published with 16 channels; CDB's data have the four that its pipeline delivers.",
        "The published loss is a sum over pixels (times 0.1 in large runs); here it is the mean, as for Tiramisu.",
    ),
)
