"""Measures of success as counts that add up over batches and ranks, and what the sums of them say.

Arrays in, float64 arrays out: no TensorFlow, so that a few numbers are all that ranks have to exchange.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.float64]

THRESHOLDS = 5000  # of the published AUC: binary_classifier_tf.py, tf.metrics.auc(num_thresholds=5000)
_EDGE = 1e-7  # by which the outermost thresholds lie beyond 0 and 1, as in tf.metrics.auc


def thresholds(count: int = THRESHOLDS) -> npt.NDArray[np.float64]:
    """Evenly from just below 0 to just above 1, float64 [count]."""
    edges = np.linspace(0, 1, count)
    edges[[0, -1]] = -_EDGE, 1 + _EDGE
    return edges


def binary_counts(outputs: Array, labels: Array) -> Counts:
    """Of logits [n, 2] and labels 0 or 1 [n]: correct, then histograms of both classes over the thresholds' gaps."""
    signal = probabilities(outputs)[:, 1]
    labels = labels.reshape(-1) == 1
    correct = np.count_nonzero((signal > 0.5) == labels)
    # above(k) = how many thresholds lie below the probability: it counts as positive for these
    above = np.searchsorted(thresholds(), signal, side="left")
    bins = [np.bincount(above[chosen], minlength=THRESHOLDS + 1) for chosen in (labels, ~labels)]
    return np.concatenate([[correct], *bins]).astype(np.float64)


def binary_score(sums: Counts) -> dict[str, float]:
    """Accuracy, and the area under the curve of true over false positives, by trapezoids between thresholds."""
    hits, misses = (np.cumsum(part[::-1])[::-1][1:] for part in np.split(sums[1:], 2))
    positives, negatives = (part.sum() for part in np.split(sums[1:], 2))
    true, false = hits / max(positives, 1), misses / max(negatives, 1)
    area = np.sum((false[:-1] - false[1:]) * (true[:-1] + true[1:]) / 2)
    return {"accuracy": float(sums[0] / (positives + negatives)), "auc": float(area)}


def confusion_counts(outputs: Array, labels: Array) -> Counts:
    """Of logits [n, ..., classes] and labels [n, ...]: label x prediction, flat."""
    classes = outputs.shape[-1]
    predicted = outputs.reshape(-1, classes).argmax(axis=1)
    return np.bincount(labels.reshape(-1) * classes + predicted, minlength=classes**2).astype(np.float64)


def confusion_score(sums: Counts) -> dict[str, float]:
    """Mean over the classes that occur, in labels or predictions, of intersection over union (tf.metrics.mean_iou)."""
    table = sums.reshape(round(len(sums) ** 0.5), -1)
    both = np.diag(table)
    either = table.sum(axis=0) + table.sum(axis=1) - both
    shares = both[either > 0] / either[either > 0]
    each = {f"iou_{number}": float(both[number] / either[number]) for number in range(len(both)) if either[number] > 0}
    return {"mean_iou": float(shares.mean()), "accuracy": float(both.sum() / table.sum()), **each}


def regression_counts(outputs: Array, labels: Array) -> Counts:
    """Of outputs and labels [n, targets]: n, then for each target the sums of |error|, error^2, label, label^2."""
    errors = outputs.astype(np.float64) - labels
    targets = labels.astype(np.float64)
    columns = [np.abs(errors), np.square(errors), targets, np.square(targets)]
    return np.concatenate([[len(labels)], *(column.sum(axis=0) for column in columns)])


def regression_score(sums: Counts, names: Sequence[str]) -> dict[str, float]:
    """Mean absolute error over all targets, and R^2 of each: 1 - squared error over the labels' own variance."""
    count = sums[0]
    absolute, squared, first, second = np.split(sums[1:], 4)
    spread = second - np.square(first) / count
    shares = 1 - squared / np.where(spread > 0, spread, 1)
    each = {f"r2_{name}": float(share) for name, share in zip(names, shares, strict=True)}
    return {"mae": float(absolute.sum() / (count * len(absolute))), "r2": float(shares.mean()), **each}


def top_counts(outputs: Array, labels: Array) -> Counts:
    """Of logits [n, classes] and labels from 0 [n]: how many, and how many have the largest output."""
    return np.array([len(labels), np.count_nonzero(outputs.argmax(axis=1) == labels)], dtype=np.float64)


def top_score(sums: Counts) -> dict[str, float]:
    """The share of samples whose class has the largest output."""
    return {"top_1": float(sums[1] / sums[0])}


def probabilities(outputs: Array) -> npt.NDArray[np.float64]:
    """Softmax over the last axis."""
    raised = np.exp(outputs.astype(np.float64) - outputs.max(axis=-1, keepdims=True))
    shares: npt.NDArray[np.float64] = raised / raised.sum(axis=-1, keepdims=True)
    return shares
