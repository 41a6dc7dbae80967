"""A model of each kind learns what is in the synthetic data, judged on samples that it was not trained on; with labels
of other samples it does not. The other models learn a few samples by heart. Needs TensorFlow.

The tiny datasets, smaller widths and larger rates than published.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks.model import LOWER, build, choose, keys, require_finite, traced
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.tensor_batches import lend
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import TRAIN, VALIDATION

tf = tensorflow()
Decoded = tuple[Dataset, npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class Lesson:
    """How a model is taught: files, width, batch, rate (a tenth of it in the last quarter), steps.

    `learned`: what its scores must pass.
    `noise`: how far from chance the metric may come out where labels were exchanged.
    """

    model: str
    workload: str
    variant: str
    files: Mapping[str, int]
    width: float
    batch: int
    rate: float
    steps: int
    learned: Mapping[str, float]
    noise: float


# One of each kind of task: classes, maps, numbers.
LESSONS = [
    Lesson("hepcnn", "hepcnnb", "224", {TRAIN: 12, VALIDATION: 32}, 1 / 4, 32, 3e-3, 120, {"auc": 0.65}, 0.1),
    Lesson("tiramisu", "cdb", "cori", {TRAIN: 48, VALIDATION: 8}, 1 / 4, 2, 4e-3, 160, {"mean_iou": 0.38}, 0.02),
    Lesson(
        "cosmoflow", "cosmoflow", "mlperf-v1", {TRAIN: 512, VALIDATION: 64}, 1 / 2, 8, 1e-2, 500,
        {"r2_sigma_8": 0.5, "r2_omega_m": 0.1}, 0.05,
    ),
]  # fmt: skip
# The other networks, with a width and a rate at which they learn four samples by heart.
BY_HEART = {"deeplab": (1 / 16, 6e-3), "cosmoflow-sc18": (1 / 4, 3e-4), "resnet50": (1 / 4, 2e-3)}


@pytest.fixture(scope="module")
def taught(
    decoded: Callable[[str, str, Mapping[str, int]], Decoded],
) -> Callable[[Lesson], Decoded]:
    """The decoded samples of a lesson, made once for both of its tests."""
    made: dict[tuple[Any, ...], Decoded] = {}

    def find(lesson: Lesson) -> Decoded:
        what = lesson.workload, lesson.variant, tuple(lesson.files.items())
        if what not in made:
            made[what] = decoded(lesson.workload, lesson.variant, lesson.files)
        return made[what]

    return find


def learn(lesson: Lesson, dataset: Dataset, samples: npt.NDArray[np.uint8], *, exchanged: bool) -> dict[str, float]:
    """Train and say how the held-out samples fared. `exchanged`: labels are those of other samples, in all of them."""
    model = choose(WORKLOADS[lesson.workload].models, lesson.variant, lesson.model)
    sample = model.sample(dataset)
    draw = np.random.default_rng(1)
    labels = np.arange(len(samples))
    # SC18's data have no validation split: the last of nine parts is held out
    training = dataset.training_samples if VALIDATION in lesson.files else dataset.samples * 8 // 9
    if exchanged:
        labels = np.concatenate([draw.permutation(training), draw.permutation(np.arange(training, len(samples)))])
    first = 4 * sample.parts[0].words
    blocks = samples[:, :first], samples[:, first:]

    def batch(ids: npt.NDArray[np.int64]) -> Batch:
        return Batch(ids, (Block.even(blocks[0][ids]), Block.even(blocks[1][labels[ids]])))

    network = build(model, sample.shape, width=lesson.width)
    train, evaluate = traced(model, sample, network)
    optimizer = model.optimizer()
    optimizer.build(network.trainable_variables)
    optimizer.learning_rate = lesson.rate
    apply = tf.function(lambda gradients: optimizer.apply(gradients, network.trainable_variables), autograph=False)
    order = np.concatenate([draw.permutation(training) for _ in range(-(-lesson.steps * lesson.batch // training))])
    for step in range(lesson.steps):
        if step == lesson.steps * 3 // 4:
            optimizer.learning_rate = lesson.rate / 10
        given = batch(order[step * lesson.batch : (step + 1) * lesson.batch])
        loss, gradients = train(lend(given), tf.constant(keys(given.ids, step)))
        require_finite(float(loss), model.name, step, lesson.rate)
        apply(gradients)
    sums: Any = 0
    for ids in np.split(np.arange(training, len(samples)), range(64, len(samples) - training, 64)):
        outputs, wanted = evaluate(lend(batch(ids)))
        sums = sums + model.count(outputs.numpy(), wanted.numpy())
    return model.score(sums)


@pytest.mark.parametrize("name", BY_HEART)
def test_a_model_learns_a_few_samples_by_heart(
    name: str, decoded: Callable[[str, str, Mapping[str, int]], Decoded]
) -> None:
    [(workload, model)] = [
        (workload, model) for workload in WORKLOADS.values() for model in workload.models if model.name == name
    ]
    several = workload.name == "imagenet" or name == "cosmoflow-sc18"  # samples in a file
    dataset, samples = decoded(workload.name, model.variants[0], {TRAIN: 1 if several else 4})
    sample = model.sample(dataset)
    width, rate = BY_HEART[name]
    network = build(model, sample.shape, width=width, dropout=False)
    train, _ = traced(model, sample, network)
    optimizer = model.optimizer()
    optimizer.build(network.trainable_variables)
    optimizer.learning_rate = rate
    apply = tf.function(lambda gradients: optimizer.apply(gradients, network.trainable_variables), autograph=False)
    first = 4 * sample.parts[0].words
    given = Batch(np.arange(4), (Block.even(samples[:4, :first]), Block.even(samples[:4, first:])))
    losses = []
    for step in range(30):
        loss, gradients = train(lend(given), tf.constant(keys(given.ids, step)))
        apply(gradients)
        losses.append(float(loss))
    assert min(losses[-3:]) < 0.5 * losses[0], losses


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.model)
def test_a_model_learns(lesson: Lesson, taught: Callable[[Lesson], Decoded]) -> None:
    score = learn(lesson, *taught(lesson), exchanged=False)
    assert {name: score[name] for name, least in lesson.learned.items() if score[name] <= least} == {}, score


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.model)
def test_a_model_learns_nothing_from_labels_of_other_samples(
    lesson: Lesson, taught: Callable[[Lesson], Decoded]
) -> None:
    model = choose(WORKLOADS[lesson.workload].models, lesson.variant, lesson.model)
    shorter = replace(lesson, steps=lesson.steps // 2)  # in which it learns from the right labels, too
    score = learn(shorter, *taught(lesson), exchanged=True)
    gain = model.chance - score[model.metric] if model.better == LOWER else score[model.metric] - model.chance
    assert gain < lesson.noise, score
