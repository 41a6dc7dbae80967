"""CosmoFlow's networks, which read cosmological parameters off the distribution of matter: one a generation of data."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.benchmarks import schedules
from dlio_bench.benchmarks.cosmoflow.decode import side
from dlio_bench.benchmarks.cosmoflow.generations import ORIGINAL, SC18, early
from dlio_bench.benchmarks.cosmoflow.layout import REDSHIFTS
from dlio_bench.benchmarks.cosmoflow.physical import PARAMETERS
from dlio_bench.benchmarks.metrics import regression_counts, regression_score
from dlio_bench.benchmarks.model import ALL, LOWER, TRAINABLE, Fields, Model, Part, Sample, Tensor
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError

NAMES = ("omega_m", "sigma_8", "n_s", "h_0")
MLPERF_FILTERS, LAST_SIDE, SPAN = 32, 4, 1.2  # of the first convolution; of the last map; of the outputs
BIAS = 0.1  # at the start, in the networks before MLPerf
SC18_RATE, SC18_LAST_RATE, SC18_EPOCHS = 1e-3, 1e-4, 100
LEAK, KERAS_LEAK = 0.01, 0.3  # slope of the leaky ReLU below 0; Keras 2's default, which the MLPerf code takes


class ConvStep(Struct, frozen=True):
    """One convolution without padding of a network of before MLPerf; `pooled`: averaged over 2^3 behind it."""

    filters: int
    kernel: int
    stride: int = 1
    pooled: bool = False


# The generation of SC18, NERSC/CosmoFlow @02cecab, CosmoNet.py; its logs print 7 041 186 parameters for two targets
# (@03c36de, LogCosmoFlow_N256BZ1). That file pools nothing behind the third convolution, has the
# stride there, and takes what it gets for 64 samples; CosmoNet_128128.py has the strides for which its 2048 features
# are one sample's, and so has this table.
SC18_STEPS = (
    ConvStep(16, 3, pooled=True),
    ConvStep(32, 4, pooled=True),
    ConvStep(64, 4, pooled=True),
    ConvStep(128, 3, stride=2),
    ConvStep(256, 3),
    ConvStep(256, 2),
    ConvStep(256, 2),
)
SC18_UNITS = (2048, 256)

# The generation before it, NERSC/CosmoFlow @28937fa: CosmoNet_noFeed.py, and CosmoNet_noFeed_changed_addedfcl.py, which
# has a layer of 512 units more. At 64^3 the last map has 2^3 voxels of 128 filters: the 1024 features of the code.
ORIGINAL_STEPS = (
    ConvStep(16, 3, pooled=True),
    ConvStep(32, 4, pooled=True),
    ConvStep(64, 4, stride=2),
    ConvStep(64, 3),
    ConvStep(128, 2),
    ConvStep(128, 2),
)
ORIGINAL_UNITS = (1024, 256)
ORIGINAL_RATE, ORIGINAL_EPOCHS = 1e-4, 80
MOMENTUM, EPSILON = 0.99, 1e-4  # of its batch normalisation


def sample(dataset: Dataset) -> Sample:
    """Voxels and targets, as `decode` delivers them; those of before MLPerf get a last axis of one channel."""
    edge = side(dataset)
    generation = early(dataset)
    channels, targets = (REDSHIFTS, PARAMETERS) if generation is None else (1, generation.targets)
    shape = (edge, edge, edge, channels)
    return Sample((Part("voxels", "float32", shape), Part("targets", "float32", (targets,))), shape, fields)


def fields(parts: Sequence[Tensor]) -> Fields:
    """Inputs and targets."""
    return Fields(*parts)


def mlperf_network(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """Four outputs in [-1.2, 1.2]. Convolutions of 32, 64, ... filters, each pooled by 2, down to maps of 4^3.

    At 128^3 these are five, as published; at the tiny dataset's 16^3 the first two of them.
    UsageError for a side that is no multiple of 8.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    if shape[0] % (2 * LAST_SIDE):
        raise UsageError(f"CosmoFlow's network takes cubes whose side is a multiple of 8 voxels, not {shape[0]}.")
    layers = keras().layers
    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    x, filters = made.inputs, made.channels(MLPERF_FILTERS)
    while x.shape[1] > LAST_SIDE and x.shape[1] % 2 == 0:
        x = made.leaky(made.conv(x, filters, 3, initial="glorot_uniform"), KERAS_LEAK)
        x, filters = made.pool(x, "max"), 2 * filters
    x = layers.Flatten()(x)
    for units in (128, 64):
        x = made.leaky(made.dense(x, made.channels(units), initial="glorot_uniform"), KERAS_LEAK)
        x = made.drop(x, 0.5)
    x = made.dense(x, PARAMETERS, initial="glorot_uniform")
    return made.model(layers.Activation("tanh")(x) * SPAN, "cosmoflow")


def early_network(
    shape: tuple[int, ...],
    width: float = 1,
    dropout: bool = True,
    seed: int = 0,
    *,
    targets: int = SC18.targets,
    steps: Sequence[ConvStep] = SC18_STEPS,
    units: Sequence[int] = SC18_UNITS,
    normalised: bool = False,
    name: str = "cosmoflow-sc18",
) -> Any:
    """Outputs [n, targets]. Convolutions without padding, then fully connected layers, each behind a dropout.

    A cube that is too small for all convolutions (the tiny dataset's, 16^3) gets those that fit. normalised: with batch
    normalisation behind each convolution.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    made = Layers(shape, width=width, dropout=dropout, seed=seed)

    def dense(x: Tensor, size: int) -> Tensor:
        return made.dense(made.drop(x, 0.5), size, initial="glorot_uniform", first_bias=BIAS)

    x = made.inputs
    for step in steps:
        if x.shape[1] < step.kernel:
            break
        x = made.conv(
            x,
            made.channels(step.filters),
            step.kernel,
            stride=step.stride,
            padding="valid",
            initial="glorot_uniform",
            first_bias=BIAS,
        )
        if normalised:
            x = keras().layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)(x)
        x = made.leaky(x, LEAK)
        if step.pooled and x.shape[1] > 1:
            x = made.pool(x, "average")
    x = keras().layers.Flatten()(x)
    for size in units:
        x = made.leaky(dense(x, made.channels(size)), LEAK)
    return made.model(dense(x, targets), name)


def squared_loss(outputs: Tensor, given: Fields) -> Tensor:
    """Mean squared error."""
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    return tf.reduce_mean(tf.square(outputs - given.labels))


def absolute_loss(outputs: Tensor, given: Fields) -> Tensor:
    """Mean absolute error."""
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    return tf.reduce_mean(tf.abs(outputs - given.labels))


def _momentum() -> Any:
    from dlio_bench.benchmarks.networks import keras

    return keras().optimizers.SGD(1e-3, momentum=0.9)


def _larc() -> Any:
    return schedules.larc_adam(SC18_RATE, clip=schedules.CLIPPED_AT_ONE)


def _adam() -> Any:
    from dlio_bench.benchmarks.networks import keras

    return keras().optimizers.Adam(ORIGINAL_RATE, epsilon=1e-8)  # TensorFlow 1's


def score(names: Sequence[str], sums: npt.NDArray[np.float64]) -> dict[str, float]:
    """See regression_score."""
    return regression_score(sums, names)


COSMOFLOW_MLPERF = Model(
    name="cosmoflow",
    title="CosmoFlow, MLPerf HPC",
    source="mlcommons/hpc @9d014c8, cosmoflow/models/cosmoflow.py, cosmoflow/configs/cosmo.yaml",
    variants=("mlperf-v1", "mlperf-v0.7"),
    published_shape=(128, 128, 128, REDSHIFTS),
    parameters=8_907_556,
    counted=ALL,
    batch=4,
    epochs=128,
    sample=sample,
    network=mlperf_network,
    loss=squared_loss,
    optimizer=_momentum,
    rate=schedules.cosmoflow,
    count=regression_counts,
    score=partial(score, NAMES),
    metric="mae",
    better=LOWER,
    chance=0.5,  # of targets spread evenly over [-1, 1], and 0 for all of them; the published target is 0.124
)

COSMOFLOW_SC18 = Model(
    name="cosmoflow-sc18",
    title="CosmoFlow, SC18",
    source="NERSC/CosmoFlow @02cecab, CosmoNet.py, and branch CoriRunsApril10_3param, the run with three parameters; "
    "Mathuriya et al., arXiv 1808.04728",
    variants=("sc18",),
    published_shape=(128, 128, 128, 1),
    parameters=7_041_443,  # 7 041 186 with two targets, as logged; the data have three
    counted=ALL,
    batch=1,
    epochs=SC18_EPOCHS,
    sample=sample,
    network=early_network,
    loss=absolute_loss,
    optimizer=_larc,
    rate=schedules.linear(SC18_RATE, SC18_LAST_RATE, SC18_EPOCHS),
    count=regression_counts,
    score=partial(score, NAMES[: SC18.targets]),
    metric="mae",
    better=LOWER,
    chance=3**0.5 / 2,  # of z-scores, here evenly spread with standard deviation 1, and 0 for all of them
    notes=(
        "Strides and pools are those under which the published 2048 features belong to one sample. The runs of March "
        "2018 made 64 rows of 2048 of a sample, and their loss was the mean over 64 predictions.",
        "LARC's coefficients are those of CosmoNet_LARS.py @92ec346 (0.002 and 1/16000); it clips at 1.0, as in branch "
        "CoriRunsApril10_3param. The power of the polynomial decay is taken to be TensorFlow's default, 1.",
    ),
)

COSMOFLOW_ORIGINAL = Model(
    name="cosmoflow-64",
    title="CosmoFlow, 64^3 voxels",
    source="NERSC/CosmoFlow @28937fa, CosmoNet_noFeed.py, hyper_parameters_Cosmo.py",
    variants=(ORIGINAL.variant,),
    published_shape=(ORIGINAL.side, ORIGINAL.side, ORIGINAL.side, 1),
    parameters=1_785_282,  # nobody printed it: the sum of the shapes in the code
    counted=TRAINABLE,
    batch=1,
    epochs=ORIGINAL_EPOCHS,
    sample=sample,
    network=partial(
        early_network,
        targets=ORIGINAL.targets,
        steps=ORIGINAL_STEPS,
        units=ORIGINAL_UNITS,
        normalised=True,
        name="cosmoflow-64",
    ),
    loss=absolute_loss,
    optimizer=_adam,
    rate=schedules.constant(ORIGINAL_RATE),
    count=regression_counts,
    score=partial(score, NAMES[: ORIGINAL.targets]),
    metric="mae",
    better=LOWER,
    chance=3**0.5 / 2,  # as above
    notes=("The number of its parameters was not published: it is the sum of the shapes in the code.",),
)
