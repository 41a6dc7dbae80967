"""The classifier of the notebooks: that of NERSC's RPV notebooks, for images of any size.

Source: github.com/sparticlesteve/cori-intml-examples, rpv.py (Farrell et al., "Interactive Distributed Deep Learning
with Jupyter Notebooks", ISC 2018 workshops).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dlio_bench.benchmarks.networks import keras

# DistTrain_rpv.ipynb: 547,841 parameters on images of 64 x 64 x 1
PUBLISHED: dict[str, Any] = {
    "conv": (16, 32, 64), "dense": 128, "dropout": 0.2, "optimizer": "Adam", "rate": 1e-3, "batch": 128, "epochs": 4,
}  # fmt: skip
PUBLISHED_SHAPE = (64, 64, 1)


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


def built(shape: Sequence[int], parameters: Mapping[str, Any], seed: int = 0) -> Any:
    """The network of some parameters, as PUBLISHED has them."""
    return network(shape, parameters["conv"], parameters["dense"], parameters["dropout"], seed)
