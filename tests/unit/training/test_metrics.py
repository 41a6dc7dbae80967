"""Measures of success against numbers worked out by hand, and that they add up over batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.benchmarks import metrics
from dlio_bench.benchmarks.registry import WORKLOADS


def logits(probabilities: list[float]) -> Any:
    """Of the class 1 of two."""
    found = np.array(probabilities)
    with np.errstate(divide="ignore"):
        return np.log(np.stack([1 - found, found], axis=1))


def test_auc_and_accuracy_by_hand() -> None:
    # pairs of a positive and a negative: 0.9 > 0.6, 0.9 > 0.2, 0.4 < 0.6, 0.4 > 0.2: three of four are in order
    score = metrics.binary_score(metrics.binary_counts(logits([0.9, 0.4, 0.6, 0.2]), np.array([1, 1, 0, 0])))
    assert score == pytest.approx({"accuracy": 0.5, "auc": 0.75})


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_share_of_pairs_in_order(drawn: list[tuple[float, bool]]) -> None:
    rounded = [round(value * 500) / 500 + 1e-4 for value, _ in drawn]  # apart by more than a gap of the thresholds
    values, labels = np.clip(rounded, 0, 1 - 1e-9), np.array([label for _, label in drawn])
    positive, negative = values[labels], values[~labels]
    if positive.size and negative.size:
        pairs = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
        found = metrics.binary_score(metrics.binary_counts(logits(values.tolist()), labels.astype(np.int32)))
        assert found["auc"] == pytest.approx(pairs.mean(), abs=1e-9)


def test_mean_iou_by_hand() -> None:
    labels = np.array([[0, 0, 0, 0], [1, 1, 2, 2]])
    predicted = np.array([[0, 0, 0, 1], [1, 0, 2, 2]])
    score = metrics.confusion_score(metrics.confusion_counts(np.eye(3)[predicted], labels))
    # class 0: 3 of 5, class 1: 1 of 3, class 2: 2 of 2
    assert score["mean_iou"] == pytest.approx((3 / 5 + 1 / 3 + 1) / 3)
    assert (score["iou_0"], score["iou_1"], score["iou_2"]) == pytest.approx((3 / 5, 1 / 3, 1))
    assert score["accuracy"] == 6 / 8


def test_mean_iou_leaves_out_a_class_that_never_occurs() -> None:
    score = metrics.confusion_score(metrics.confusion_counts(np.eye(3)[[0, 1, 1]], np.array([0, 0, 1])))
    assert score["mean_iou"] == pytest.approx(0.5)
    assert "iou_2" not in score


def test_background_everywhere_scores_what_the_model_calls_chance() -> None:
    tiramisu = WORKLOADS["cdb"].models[0]
    labels = np.repeat([0, 1, 2], [98_200, 71, 1_729])
    score = metrics.confusion_score(metrics.confusion_counts(np.eye(3)[np.zeros_like(labels)], labels))
    assert score["mean_iou"] == pytest.approx(tiramisu.chance)


def test_mean_absolute_error_and_r2_by_hand() -> None:
    labels = np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]], np.float32)
    outputs = np.array([[1.0, 2.0], [2.0, 2.0], [5.0, 2.0]], np.float32)
    score = metrics.regression_score(metrics.regression_counts(outputs, labels), ["a", "b"])
    # variances times 3: 8 and 24; squared errors: 1, and those of the mean itself
    assert score == pytest.approx({"mae": (1 + 8) / 6, "r2": 7 / 16, "r2_a": 7 / 8, "r2_b": 0})


def test_top_1_by_hand() -> None:
    counts = metrics.top_counts(np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), np.array([1, 0, 0]))
    assert metrics.top_score(counts) == {"top_1": 2 / 3}


COUNTS: list[tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = [
    (metrics.binary_counts, (2,)),
    (metrics.confusion_counts, (5, 3)),
    (metrics.regression_counts, (4,)),
    (metrics.top_counts, (10,)),
]


@pytest.mark.parametrize(("count", "shape"), COUNTS, ids=[count.__name__ for count, _ in COUNTS])
@given(cut=st.integers(1, 11), seed=st.integers(0, 1000))
def test_counts_add_up_over_batches(
    count: Callable[[Any, Any], Any], shape: tuple[int, ...], cut: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    outputs = draw.standard_normal((12, *shape)).astype(np.float32)
    regression = count is metrics.regression_counts
    labels = draw.standard_normal((12, 4)) if regression else draw.integers(0, 2, (12, *shape[:-1]))
    parts = count(outputs[:cut], labels[:cut]) + count(outputs[cut:], labels[cut:])
    np.testing.assert_allclose(parts, count(outputs, labels), rtol=1e-12, atol=1e-9)
