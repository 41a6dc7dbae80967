"""What an engine does for one trial of a search: train, tell after each epoch, stop when asked to; and test a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.harness.notebooks.figures import area
from dlio_bench.harness.notebooks.network import BATCH, EPOCHS, of_network
from dlio_bench.harness.notebooks.training import History, Training


@dataclass(frozen=True)
class Settings:
    """What all trials of a search share.

    data: a dataset with images, labels and a validation split. folder: of the search, which all engines see: trials
    leave their weights there, and look there for the wish that they stop.
    """

    data: str
    folder: str
    epochs: int = EPOCHS
    batch: int = BATCH

    def weights(self, number: int) -> Path:
        """Where a trial leaves its weights."""
        return Path(self.folder) / f"model_{number}.weights.h5"

    def stop_request(self, number: int) -> Path:
        """The file that asks a trial to stop after its epoch."""
        return Path(self.folder) / f"stop_{number}"


def train(settings: Settings, number: int, chosen: Mapping[str, Any]) -> History:
    """Train one network; its history, which is shorter if the trial was asked to stop.

    Diverged where the loss is no number. The weights of the epoch with the best `val_acc` stay in the folder.
    """
    from ipyparallel.engine.datapub import publish_data

    if settings.stop_request(number).exists():
        return {}
    weights = settings.weights(number)
    training = Training(settings.data, of_network(chosen, settings.batch), seed=number)

    def report_epoch(history: History) -> bool:
        if int(np.argmax(history["val_acc"])) == len(history["val_acc"]) - 1:
            training.model.save_weights(weights)
        publish_data(dict(history))
        return not settings.stop_request(number).exists()

    try:
        return training.fit(settings.epochs, report_epoch)
    finally:
        training.close()


def score(settings: Settings, number: int, chosen: Mapping[str, Any], data: str, split: str = VALIDATION) -> Any:
    """Of a trial's best weights: accuracy and the area under the ROC curve on data that no trial has seen.

    Besides, the labels and probabilities that they come from.
    """
    training = Training(settings.data, of_network(chosen, settings.batch), seed=number)
    try:
        training.model.load_weights(settings.weights(number))
        labels, probabilities = training.predict(data, split)
    finally:
        training.close()
    accuracy = float(np.mean((probabilities > 0.5) == (labels == 1)))
    scores = {"accuracy": accuracy, "auc": area(labels, probabilities), "samples": len(labels)}
    return scores, labels, probabilities
