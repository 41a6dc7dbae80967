"""The classifier of the notebooks, for images of any size, and the hyper-parameters that a search varies.

Source: NERSC's RPV notebooks, github.com/sparticlesteve/cori-intml-examples (Farrell et al., "Interactive Distributed
Deep Learning with Jupyter Notebooks", ISC 2018 workshops): rpv.py; DistHPO_rpv.ipynb for the ranges of 32 trials.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dlio_bench.benchmarks.networks import keras

# DistTrain_rpv.ipynb: 547,841 parameters on images of 64 x 64 x 1
PUBLISHED: dict[str, Any] = {
    "conv": (16, 32, 64), "dense": 128, "dropout": 0.2, "optimizer": "Adam", "rate": 1e-3, "batch": 128, "epochs": 4,
}  # fmt: skip
PUBLISHED_SHAPE = (64, 64, 1)
# What a search varies, and how many trials of how many epochs and which batches it has
CHOICES: Mapping[str, Sequence[Any]] = {
    "h1": (4, 8, 16, 32, 64),  # filters of the three convolutions
    "h2": (4, 8, 16, 32, 64),
    "h3": (8, 16, 32, 64, 128),
    "fc": (32, 64, 128, 256),  # units of the dense layer
    "rate": (1e-4, 1e-3, 1e-2),
    "optimizer": ("Adadelta", "Adam", "Nadam"),
}
DROPOUT = (0.0, 1.0)  # drawn evenly
TRIALS, EPOCHS, BATCH = 32, 16, 64


def network(shape: Sequence[int], conv: Sequence[int], dense: int, dropout: float, seed: int = 0) -> Any:
    """Images [n, rows, columns, channels] -> the probability of signal [n, 1], a Keras model.

    For each number of `conv` a 3 x 3 convolution with ReLU that is pooled by 2, then dropout, a dense layer with ReLU,
    dropout, and one sigmoid. Initial weights and dropout come from the seed.
    """
    kit = keras()
    kit.utils.set_random_seed(seed)
    x = inputs = kit.Input(tuple(shape))
    for filters in conv:
        x = kit.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = kit.layers.MaxPooling2D(2)(x)
    x = kit.layers.Flatten()(kit.layers.Dropout(dropout)(x))
    x = kit.layers.Dropout(dropout)(kit.layers.Dense(dense, activation="relu")(x))
    return kit.Model(inputs, kit.layers.Dense(1, activation="sigmoid")(x), name="rpv")


def build_network(shape: Sequence[int], parameters: Mapping[str, Any], seed: int = 0) -> Any:
    """The network of some parameters, as PUBLISHED has them."""
    return network(shape, parameters["conv"], parameters["dense"], parameters["dropout"], seed)


def distributions() -> dict[str, Any]:
    """The published ranges as Optuna's distributions."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    choices = {name: CategoricalDistribution(values) for name, values in CHOICES.items()}
    return choices | {"dropout": FloatDistribution(*DROPOUT)}


def of_network(chosen: Mapping[str, Any], batch: int = BATCH) -> dict[str, Any]:
    """What `training.Training` takes, of a point in these ranges."""
    return {
        "conv": (chosen["h1"], chosen["h2"], chosen["h3"]),
        "dense": chosen["fc"],
        "dropout": chosen["dropout"],
        "optimizer": chosen["optimizer"],
        "rate": chosen["rate"],
        "batch": batch,
    }
