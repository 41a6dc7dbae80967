"""The hyper-parameters that a search varies, with their published ranges, for Optuna.

Source: DistHPO_rpv.ipynb of github.com/sparticlesteve/cori-intml-examples: 32 trials of 16 epochs with batches of 64.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
