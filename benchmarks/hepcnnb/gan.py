"""The generative adversarial network of collision events: a generator makes calorimeter images, a discriminator tells
them from those of the dataset.

Source: sparticlesteve/atlas-gan @dde093a, atlasgan/gan.py (networks), atlasgan/dcgan_trainer.py (losses, updates),
atlasgan/dataset.py (scale).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from dlio_bench.benchmarks.hepcnnb import image_quantities, model
from dlio_bench.benchmarks.hepcnnb.events import BEAM
from dlio_bench.benchmarks.hepcnnb.image_quantities import GEV, LEAST, SIDE
from dlio_bench.benchmarks.model import LOWER, TRAINABLE, Fields, Making, Model, Sample, Tensor, Update
from dlio_bench.benchmarks.schedules import constant
from dlio_bench.datagen.dataset import Dataset

NOISE, FILTERS, KERNEL = 64, 16, 4  # the trainer's defaults
DOUBLINGS = 4  # of the generator's 4 x 4 pixels, up to SIDE
RATE, BETAS = 2e-4, (0.5, 0.999)  # of both Adams
SLOPE = 0.2
KEPT, EPSILON = 0.9, 1e-5  # PyTorch's defaults of batch normalisation, whose momentum 0.1 is 1 - KEPT
HELD_OUT = 4096  # images: scripts/runValidation.py --n-valid


def sample(dataset: Dataset) -> Sample:
    """Delivered as for the classifier, pooled to energies [SIDE, SIDE, 1]."""
    return replace(model.sample(dataset), shape=(SIDE, SIDE, 1), fields=fields)


def fields(parts: Sequence[Tensor]) -> Fields:
    """Images, which are their own labels [n, SIDE, SIDE]."""
    images = pool_energy(parts[0])
    return Fields(images[..., None], images)


def pool_energy(images: Tensor) -> Tensor:
    """Events [n, phi, eta, channels] -> the energy of both calorimeters in units of 4 TeV, [n, SIDE, SIDE].

    The first channel is that sum (the second is the electromagnetic part of it), as a part of BEAM. Rows are phi,
    columns |eta| < 2.5. A pixel's energy is divided among the pixels that it covers; what is below LEAST becomes 0.
    """
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    rows, columns = (int(side) for side in images.shape[1:3])
    phi = tf.constant(overlaps(rows, 0, rows))
    eta = tf.constant(overlaps(columns, columns / 4, columns * 3 / 4))
    energy = tf.einsum("pi,nij,ej->npe", phi, images[..., 0], eta) * (BEAM * GEV)
    return tf.where(energy <= LEAST, tf.zeros_like(energy), energy)  # what is no number stays none


def overlaps(bins: int, low: float, high: float) -> npt.NDArray[np.float32]:
    """The share of each of `bins` bins of width 1 in each of SIDE equal bins of [low, high]: float32 [SIDE, bins]."""
    edges = np.linspace(low, high, SIDE + 1)
    starts = np.arange(bins)
    ends = np.minimum(edges[1:, None], starts + 1) - np.maximum(edges[:-1, None], starts)
    return np.asarray(np.maximum(ends, 0), np.float32)


def network(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """The generator, from keys to energies [n, SIDE, SIDE]; its attribute `discriminator` gives logits [n] of images
    [n, SIDE, SIDE, 1]. It has no dropout, and makes images of one size, whatever the shape.
    """
    del dropout
    from dlio_bench.benchmarks.networks import Layers, keras

    layers, ops = keras().layers, keras().ops
    made = Layers(shape, width=width, dropout=False, seed=seed)

    def initial(channels: int) -> Any:
        """As PyTorch of that time: uniform up to one over the root of a filter's inputs, also of transposed ones."""
        most = 1 / math.sqrt(channels * KERNEL**2)
        return keras().initializers.RandomUniform(-most, most, seed=made.seed())

    def convolution(x: Tensor, kind: Any, channels: int, stride: int = 2) -> Tensor:
        padding = "same" if stride == 2 else "valid"
        return kind(channels, KERNEL, stride, padding, use_bias=False, kernel_initializer=initial(int(x.shape[-1])))(x)

    # A step runs the generator twice on the same noise, once in each update, and the published one once: two updates
    # of its statistics with the same numbers, at the root of KEPT, are one at KEPT.
    grow, kept = layers.Conv2DTranspose, math.sqrt(KEPT)
    x = layers.Reshape((1, 1, NOISE))(made.noise(NOISE))
    for step, factor in enumerate(2**power for power in range(DOUBLINGS - 1, -1, -1)):
        x = convolution(x, grow, made.channels(factor * FILTERS), 2 if step else 1)
        x = layers.ReLU()(layers.BatchNormalization(momentum=kept, epsilon=EPSILON)(x))
    x = ops.sigmoid(convolution(x, grow, 1))
    x = layers.Reshape((SIDE, SIDE))(ops.where(x <= LEAST, ops.zeros_like(x), x))
    generator = made.model(x, "hepgan")

    x = images = keras().Input((SIDE, SIDE, 1))
    for step, factor in enumerate(2**power for power in range(DOUBLINGS)):
        x = convolution(x, layers.Conv2D, made.channels(factor * FILTERS))
        if step:
            x = layers.BatchNormalization(momentum=KEPT, epsilon=EPSILON)(x)
        x = made.leaky(x, SLOPE)
    x = layers.Reshape(())(convolution(x, layers.Conv2D, 1, 1))
    generator.discriminator = keras().Model(images, layers.Activation("linear", dtype="float32")(x))
    return generator


def _generator(network: Any) -> list[Any]:
    others = {id(variable) for variable in _discriminator(network)}
    return [variable for variable in network.trainable_variables if id(variable) not in others]


def _discriminator(network: Any) -> list[Any]:
    return list(network.discriminator.trainable_variables)


def discriminator_loss(network: Any, given: Fields, keys: Tensor) -> Tensor:
    """Cross-entropy of the dataset's images as real ones, and of as many made ones as others."""
    from dlio_bench.benchmarks.tensors import tensorflow

    made = tensorflow().stop_gradient(network([given.inputs, keys], training=True))
    real = network.discriminator(given.inputs, training=True)
    return _entropy(real, 1.0) + _entropy(network.discriminator(made[..., None], training=True), 0.0)


def generator_loss(network: Any, given: Fields, keys: Tensor) -> Tensor:
    """Cross-entropy of made images, taken for real ones."""
    made = network([given.inputs, keys], training=True)
    return _entropy(network.discriminator(made[..., None], training=True), 1.0)


def _entropy(logits: Tensor, label: float) -> Tensor:
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.fill(tf.shape(logits), label), logits))


def optimizer() -> Any:
    """Adam, of each network one."""
    from dlio_bench.benchmarks.networks import keras

    return keras().optimizers.Adam(RATE, beta_1=BETAS[0], beta_2=BETAS[1], epsilon=1e-8)


HEPGAN = Model(
    name="hepgan",
    title="HEP GAN",
    source="sparticlesteve/atlas-gan @dde093a, atlasgan/gan.py, dcgan_trainer.py, reco.py, validate.py, defaults of "
    "runTraining.py",
    variants=("224",),
    published_shape=(SIDE, SIDE, 1),
    parameters=303_840 + 174_784,  # generator and discriminator, by the published layers
    counted=TRAINABLE,
    batch=64,
    epochs=64,  # of its search of hyper-parameters; the script's default is 1
    sample=sample,
    network=network,
    loss=None,
    optimizer=optimizer,
    rate=constant(RATE),
    count=image_quantities.image_counts,
    score=image_quantities.image_score,
    metric="ks_energy",
    better=LOWER,
    chance=None,
    updates=(Update(_discriminator, discriminator_loss), Update(_generator, generator_loss)),
    making=Making(
        HELD_OUT,
        image_quantities.missing,
        image_quantities.quantities_of,
        image_quantities.COMBINED,
        image_quantities.picture,
    ),
    notes=(
        "Images that dlio-bench generates are drawn from estimates, not simulated: a distance tells how far the "
        "network learnt their distribution, and nothing about physics.",
        "Background and signal alike; published: signal samples alone (RPV10, mass by mass).",
        "64 x 64 pixels of |eta| < 2.5 are pooled from 224 x 224 of |eta| < 5, a pixel's energy divided among those "
        "that it covers. Published images were filled at 64 x 64.",
        "Pixels below 500 MeV become 0 in the dataset's images, as in made ones (the published threshold).",
        "An energy is its part of 6.5 TeV, which generated datasets are scaled by; the published data keep MeV.",
        "The loss of a step is the generator's. Labels are never flipped, the published default.",
        "Held-out images are those of the validation split; each has its own noise, the same in every pass.",
        "Scores of a pass are Kolmogorov-Smirnov distances of histograms; those after training are of the values.",
    ),
)
