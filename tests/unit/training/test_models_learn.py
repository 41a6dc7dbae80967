"""A model of each kind learns what is in the synthetic data, judged on samples that it was not trained on; with labels
of other samples it does not. The other models learn a few samples by heart. So every one takes steps. Needs TensorFlow.

The tiny datasets, smaller widths and larger rates than published.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks.cdb import model as cdb
from dlio_bench.benchmarks.cdb import xception
from dlio_bench.benchmarks.imagenet import model as imagenet
from dlio_bench.benchmarks.model import LOWER, Model, Sample, build, choose, compile_steps, keys, require_finite
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.tensors import lend, tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import TRAIN, VALIDATION

pytestmark = pytest.mark.slow

tf = tensorflow()
Decoded = tuple[Dataset, npt.NDArray[np.uint8]]


class Lesson(Struct, frozen=True):
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
    Lesson("tiramisu", "cdb", "cori", {TRAIN: 48, VALIDATION: 8}, 1 / 4, 2, 2e-2, 120, {"mean_iou": 0.38}, 0.02),
    Lesson(
        "cosmoflow", "cosmoflow", "mlperf-v1", {TRAIN: 512, VALIDATION: 256}, 1 / 2, 8, 1.5e-2, 350,
        {"r2_sigma_8": 0.5, "r2_omega_m": 0.1}, 0.05,
    ),
]  # fmt: skip
# The other networks, with a width, a rate and steps in which they learn four samples by heart.
BY_HEART = {
    "deeplab": (1 / 16, 6e-3, 8), "cosmoflow-sc18": (1 / 4, 3e-4, 30), "resnet50": (1 / 4, 2e-3, 14),
    "cosmoflow-64": (1 / 4, 1e-3, 30), "deepcam": (1 / 16, 3e-2, 14),
}  # fmt: skip
# Fewer of the blocks that are alike: to compile the others takes most of the time. test_models.py counts all.
SHALLOW: dict[str, tuple[ModuleType, str, object]] = {
    "deeplab": (cdb, "UNITS", ((64, 2, 2), (128, 1, 2), (256, 1, 2), (512, 2, 1))),
    "deepcam": (xception, "MIDDLE_BLOCKS", 1),
    "resnet50": (imagenet, "STAGES", ((64, 2), (128, 2), (256, 1), (512, 1))),
}
TWO_BLOCKS = partial(cdb.tiramisu, blocks=cdb.CORI[:2])


class Pupil:
    """A network, compiled to be trained; what it is made of takes longer than the steps that it takes here."""

    def __init__(self, model: Model, sample: Sample, *, width: float, rate: float, dropout: bool = True) -> None:
        self.model, self.rate = model, rate
        self.network = build(model, sample.shape, width=width, dropout=dropout)
        self.train, self.evaluate = compile_steps(model, sample, self.network)
        self.optimizer = model.optimizer()
        self.optimizer.build(self.network.trainable_variables)
        self.apply = tf.function(
            lambda gradients: self.optimizer.apply(gradients, self.network.trainable_variables), autograph=False
        )
        self.variables = [*self.network.variables, *self.optimizer.variables]
        self.start = [variable.numpy() for variable in self.variables]

    def begin(self) -> None:
        """Forget all."""
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)
        self.optimizer.learning_rate = self.rate

    def step(self, given: Batch, number: int) -> float:
        """The loss of a batch, from which it learns. The first one is looked at: is it a step?"""
        trained = self.network.trainable_variables
        before = [] if number else [variable.numpy() for variable in trained]
        loss, gradients = self.train(lend(given), tf.constant(keys(given.ids, number)))
        require_finite(float(loss), self.model.name, number, self.rate)
        self.apply(gradients)
        if number == 0:
            assert len(gradients) == len(trained)
            assert all(np.isfinite(gradient).all() for gradient in gradients)
            assert sum(bool(np.any(gradient)) for gradient in gradients) >= 0.8 * len(gradients)  # by chance some are 0
            changed = [bool((now.numpy() != old).any()) for now, old in zip(trained, before, strict=True)]
            assert sum(changed) >= 0.8 * len(changed)
        return float(loss)

    def score(self, batches: Iterable[Batch]) -> dict[str, float]:
        """How it fares."""
        sums: Any = 0
        for given in batches:
            outputs, wanted = self.evaluate(lend(given))
            assert np.isfinite(outputs).all()
            sums = sums + self.model.count(outputs.numpy(), wanted.numpy())
        return self.model.score(sums)


@pytest.fixture(scope="module")
def taught(decoded: Callable[[str, str, Mapping[str, int]], Decoded]) -> Callable[[Lesson], tuple[Decoded, Pupil]]:
    """The decoded samples of a lesson and who learns from them, made once for both of its tests."""
    made: dict[str, tuple[Decoded, Pupil]] = {}

    def find(lesson: Lesson) -> tuple[Decoded, Pupil]:
        if lesson.model not in made:
            dataset, samples = decoded(lesson.workload, lesson.variant, lesson.files)
            model = choose(WORKLOADS[lesson.workload].models, lesson.variant, lesson.model)
            model = replace(model, network=TWO_BLOCKS) if lesson.model == "tiramisu" else model
            pupil = Pupil(model, model.sample(dataset), width=lesson.width, rate=lesson.rate)
            made[lesson.model] = (dataset, samples), pupil
        (dataset, samples), pupil = made[lesson.model]
        pupil.begin()
        return (dataset, samples), pupil

    return find


def learn(
    lesson: Lesson, dataset: Dataset, samples: npt.NDArray[np.uint8], pupil: Pupil, *, exchanged: bool
) -> dict[str, float]:
    """Train and say how the held-out samples fared. `exchanged`: labels are those of other samples, in all of them."""
    draw = np.random.default_rng(1)
    labels = np.arange(len(samples))
    # SC18's data have no validation split: the last of nine parts is held out
    training = dataset.training_samples if VALIDATION in lesson.files else dataset.samples * 8 // 9
    if exchanged:
        labels = np.concatenate([draw.permutation(training), draw.permutation(np.arange(training, len(samples)))])
    first = 4 * pupil.model.sample(dataset).parts[0].words
    blocks = samples[:, :first], samples[:, first:]

    def batch(ids: npt.NDArray[np.int64]) -> Batch:
        return Batch(ids, (Block.even(blocks[0][ids]), Block.even(blocks[1][labels[ids]])))

    order = np.concatenate([draw.permutation(training) for _ in range(-(-lesson.steps * lesson.batch // training))])
    for step in range(lesson.steps):
        if step == lesson.steps * 3 // 4:
            pupil.optimizer.learning_rate = lesson.rate / 10
        pupil.step(batch(order[step * lesson.batch : (step + 1) * lesson.batch]), step)
    held_out = np.split(np.arange(training, len(samples)), range(64, len(samples) - training, 64))
    return pupil.score(batch(ids) for ids in held_out)


@pytest.mark.parametrize("name", BY_HEART)
def test_a_model_learns_a_few_samples_by_heart(
    name: str, decoded: Callable[[str, str, Mapping[str, int]], Decoded], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in SHALLOW:
        monkeypatch.setattr(*SHALLOW[name])
    [(workload, model)] = [
        (workload, model) for workload in WORKLOADS.values() for model in workload.models if model.name == name
    ]
    several = workload.name == "imagenet" or name in ("cosmoflow-sc18", "cosmoflow-64")  # samples in a file
    dataset, samples = decoded(workload.name, model.variants[0], {TRAIN: 1 if several else 4})
    sample = model.sample(dataset)
    width, rate, steps = BY_HEART[name]
    pupil = Pupil(model, sample, width=width, rate=rate, dropout=False)
    pupil.begin()
    first = 4 * sample.parts[0].words
    given = Batch(np.arange(4), (Block.even(samples[:4, :first]), Block.even(samples[:4, first:])))
    assert np.isfinite(list(pupil.score([given]).values())).all()
    losses = [pupil.step(given, step) for step in range(steps)]
    assert min(losses[-3:]) < 0.5 * losses[0], losses


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.model)
def test_a_model_learns(lesson: Lesson, taught: Callable[[Lesson], tuple[Decoded, Pupil]]) -> None:
    data, pupil = taught(lesson)
    score = learn(lesson, *data, pupil, exchanged=False)
    assert {name: score[name] for name, least in lesson.learned.items() if score[name] <= least} == {}, score


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.model)
def test_a_model_learns_nothing_from_labels_of_other_samples(
    lesson: Lesson, taught: Callable[[Lesson], tuple[Decoded, Pupil]]
) -> None:
    data, pupil = taught(lesson)
    shorter = replace(lesson, steps=lesson.steps // 2)  # in which it learns from the right labels, too
    score, model = learn(shorter, *data, pupil, exchanged=True), pupil.model
    gain = model.chance - score[model.metric] if model.better == LOWER else score[model.metric] - model.chance
    assert gain < lesson.noise, score
