"""The HEP-CNN: a classifier of collision events into background and signal."""

from collections.abc import Sequence
from typing import Any

from dlio_bench.benchmarks.metrics import binary_counts, binary_score
from dlio_bench.benchmarks.model import ALL, HIGHER, Fields, Model, Part, Sample, Tensor, cross_entropy
from dlio_bench.benchmarks.schedules import constant
from dlio_bench.datagen.dataset import Dataset

FILTERS, KERNEL = 128, 3
# (side of the square image, channels in) of five 3 x 3 convolutions with 128 filters; the first four halve the side.
# Source: NERSC/DL-Parallel-IO @290ed4a, benchmarks/hep_cnn/networks/binary_classifier_tf.py l.345-545.
CONVOLUTIONS = ((224, 3), (112, FILTERS), (56, FILTERS), (28, FILTERS), (14, FILTERS))
CLASSES = 2
FORWARD_AND_BACKWARD = 3  # the backward pass computes two gradients, each at the cost of the forward pass


def forward_macs() -> int:
    """Multiply-accumulates of one image's forward pass."""
    convolutions = sum(side * side * KERNEL * KERNEL * channels * FILTERS for side, channels in CONVOLUTIONS)
    return convolutions + FILTERS * CLASSES


def step_seconds(batch: int, flops_per_second: float) -> float:
    """Seconds of a training step of `batch` images at that rate; a multiply-accumulate counts as two operations."""
    return batch * 2 * forward_macs() * FORWARD_AND_BACKWARD / flops_per_second


POOLED = 4  # of the five convolutions
DROPPED = 0.5  # dropout_p of cori_knl_224_adam.json
RATE, EPSILON = 1e-3, 1e-8  # of Adam; the latter is TensorFlow 1's default
SOURCE = (
    "NERSC/DL-Parallel-IO @290ed4a, hep_cnn/networks/binary_classifier_tf.py build_cnn_model with "
    "scaling_improvements, configs/cori_knl_224_adam.json; Kurth et al., arXiv 1708.05256"
)


def sample(dataset: Dataset) -> Sample:
    """Image with the channels last, label and the scalars beside it, as `decode` delivers them."""
    channels, rows, columns = dataset.manifest.fields[dataset.field_index(["data"])[0]].shape
    shape = (rows, columns, channels)
    scalars = [Part("weight", "float32", ()), Part("normweight", "float32", ()), Part("psr", "int32", ())]
    return Sample((Part("data", "float32", shape), Part("label", "int32", ()), *scalars), shape, fields)


def fields(parts: Sequence[Tensor]) -> Fields:
    """Images and labels. Weights are left out, as in the I/O study, which set them to 1."""
    return Fields(parts[0], parts[1])


def network(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """Logits [n, 2]. Four convolutions are pooled by 2 and dropped, one is averaged over what is left.

    Takes images of 16 pixels a side or more: those of the tiny dataset are a single pixel before the last convolution.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    relu = keras().activations.relu
    x = made.inputs
    for _ in range(POOLED):
        x = relu(made.conv(x, made.channels(FILTERS), KERNEL))
        x = made.drop(made.pool(x, "max", padding="same"), DROPPED)
    x = relu(made.conv(x, made.channels(FILTERS), KERNEL))
    x = keras().layers.GlobalAveragePooling2D()(x)
    return made.model(made.dense(x, CLASSES), "hepcnnb")


def optimizer() -> Any:
    """Adam."""
    from dlio_bench.benchmarks.networks import keras

    return keras().optimizers.Adam(RATE, epsilon=EPSILON)


HEPCNNB_CNN = Model(
    name="hepcnn",
    title="HEP-CNN",
    source=SOURCE,
    variants=("224",),
    published_shape=(224, 224, 3),
    parameters=594_178,  # 2.3 MiB in the paper
    counted=ALL,
    batch=128,
    epochs=5,  # of the I/O study; 200 in other configurations
    sample=sample,
    network=network,
    loss=cross_entropy,
    optimizer=optimizer,
    rate=constant(RATE),
    count=binary_counts,
    score=binary_score,
    metric="auc",
    better=HIGHER,
    chance=0.5,
)
