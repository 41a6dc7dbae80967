"""Training on an engine: each rank reads its own share of every epoch, and gradients are averaged over the ranks.

The notebooks that this follows load the same first samples on all ranks (see `network`, rpv.py lines 19-27). Here the
loader shares each epoch among the ranks. Left out: the warm-up of the learning rate, which the published runs set to 0
epochs, and its cut after 8 epochs without progress, of which they ran 4.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.networks import keras
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.datagen.layout import TRAIN, VALIDATION
from dlio_bench.errors import Diverged
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.library import ranks
from dlio_bench.harness.library.load import load
from dlio_bench.harness.library.loader import Loader
from dlio_bench.harness.notebooks.network import build_network
from dlio_bench.harness.training.exchange.exchange import Exchange, open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions

Array = npt.NDArray[Any]
History = dict[str, list[float]]  # loss, acc, val_loss, val_acc, seconds: a number for each epoch that is over
OnEpoch = Callable[[History], bool]  # told after each epoch; False stops the training
PATIENCE = 300.0  # seconds that a rank waits for the others
SMALLEST = 1e-7  # of a probability, before its logarithm: Keras' epsilon


class Training:
    """What a rank trains with: `fit`, then `predict`; then `close`, on all ranks together.

    `rank`, `ranks`: of those that train together. `samples`: that this rank reads of an epoch. `exchange`: how
    gradients are averaged, and why so. `model`: the Keras model.
    """

    def __init__(
        self, data: Path | str, parameters: Mapping[str, Any], *, reader: str = "prefetch", seed: int = 0
    ) -> None:
        """All ranks that a launcher has started together make one together; else this process trains alone.

        data: a dataset with images, labels and a validation split. parameters: as network.PUBLISHED has them; the rate
        is multiplied by the number of ranks, as published. UsageError, DataError, EnvironmentFailure.
        """
        self._comm: Comm = ranks.ranks(None, PATIENCE)
        self.rank, self.ranks = self._comm.rank, self._comm.size
        self._data, self._parameters, self._reader, self._seed = Path(data), parameters, reader, seed
        with self._open(TRAIN, 1) as loader:
            shape = loader.fields["data"][1]
            self.samples = len(loader) * loader.batch
        self._exchange: Exchange = open_exchange(self._comm, ExchangeOptions())
        self.exchange = f"{self._exchange.choice.kind}: {self._exchange.choice.why}"
        self.model = build_network(shape, parameters, seed)
        for variable, value in zip(self.model.variables, self._exchange.broadcast(self.model.variables), strict=True):
            variable.assign(value)
        made = getattr(keras().optimizers, parameters["optimizer"])
        self._optimizer = made(parameters["rate"] * self.ranks)
        self._step = _step(self.model)
        self.history: History = {name: [] for name in ("loss", "acc", "val_loss", "val_acc", "seconds")}

    def fit(self, epochs: int, on_epoch: OnEpoch = lambda _: True) -> History:
        """Train. `loss` and `acc` are of this rank's samples, `val_loss` and `val_acc` of all ranks'.

        Diverged where the loss is no number. `on_epoch` may stop the training of one rank, not of several.
        """
        with self._open(TRAIN, epochs) as train, self._open(VALIDATION, epochs) as validation:
            for epoch in range(epochs):
                begun = time.perf_counter()
                sums = np.zeros(3)
                for batch in train:
                    sums += self._train(batch["data"], batch["label"], epoch)
                held_out = self._shared(sum(map(_count_hits, *self._predictions(validation)), np.zeros(3)))
                values = (*(sums[:2] / sums[2]), *(held_out[:2] / held_out[2]), time.perf_counter() - begun)
                for name, value in zip(self.history, values, strict=True):
                    self.history[name].append(float(value))
                if not on_epoch(self.history):
                    break
        return self.history

    def predict(self, data: Path | str | None = None, split: str = VALIDATION) -> tuple[Array, Array]:
        """(labels int [n], probabilities float64 [n]) of this rank's share of a split, of this or another dataset."""
        with self._open(split, 1, data) as loader:
            labels, probabilities = self._predictions(loader)
            return np.concatenate(labels), np.concatenate(probabilities)

    def close(self) -> None:
        """End the exchange of gradients. All ranks call it together."""
        self._exchange.close()

    def _open(self, split: str, epochs: int, data: Path | str | None = None) -> Loader:
        last = "drop" if split == TRAIN else "keep"
        return load(
            data or self._data,
            batch=self._parameters["batch"],
            reader=self._reader,
            epochs=epochs,
            seed=self._seed + 1,
            fields=(),
            decode=True,
            split=split,
            last=last,
            patience=PATIENCE,
        )

    def _train(self, images: Array, labels: Array, epoch: int) -> Array:
        """One step; the sums of loss and hits of its samples, and their number."""
        tf = tensorflow()
        given = tf.cast(tf.constant(labels.reshape(-1, 1)), tf.float32)
        loss, outputs, gradients = self._step(tf.constant(images), given)
        if not math.isfinite(float(loss)):
            raise Diverged(
                f"The loss is {float(loss)} in epoch {epoch + 1} on rank {self.rank}: the training cannot go on. "
                "Use a smaller rate."
            )
        self._optimizer.apply(self._exchange.reduce(gradients), self.model.trainable_variables)
        hits = np.count_nonzero((outputs.numpy().reshape(-1) > 0.5) == (labels.reshape(-1) == 1))
        return np.array([float(loss) * len(labels), hits, len(labels)])

    def _predictions(self, loader: Loader) -> tuple[list[Array], list[Array]]:
        """Labels and probabilities of an epoch, batch by batch."""
        labels, probabilities = [], []
        for batch in loader:
            labels.append(batch["label"].reshape(-1).copy())
            probabilities.append(np.asarray(self.model(batch["data"], training=False), np.float64).reshape(-1))
        return labels, probabilities

    def _shared(self, sums: Array) -> Array:
        return np.asarray(np.sum(self._comm.allgather(sums), axis=0))


def _step(model: Any) -> Any:
    """A function of TensorFlow: images, labels [n, 1] -> loss, outputs, gradients."""
    tf = tensorflow()
    cross_entropy = keras().losses.BinaryCrossentropy()

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            loss = cross_entropy(labels, outputs)
        return loss, outputs, tape.gradient(loss, model.trainable_variables)

    return tf.function(step, autograph=False)


def _count_hits(labels: Array, probabilities: Array) -> Array:
    """The sums of loss and hits of some samples, and their number."""
    of_truth = np.where(labels == 1, probabilities, 1 - probabilities)
    hits = np.count_nonzero((probabilities > 0.5) == (labels == 1))
    return np.array([-np.log(np.maximum(of_truth, SMALLEST)).sum(), hits, len(labels)])
