"""Dropout by sample and step: the same masks whichever rank a sample comes to. Needs TensorFlow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.benchmarks.cosmoflow.model import COSMOFLOW_MLPERF
from dlio_bench.benchmarks.hepcnnb.model import HEPCNNB_CNN
from dlio_bench.benchmarks.model import build, keys, objective
from dlio_bench.benchmarks.networks import Layers
from dlio_bench.benchmarks.tensors import lend, tensorflow
from dlio_bench.datagen.dataset import Dataset
from tests.datasets import batch_of

pytestmark = pytest.mark.slow

Decoded = tuple[Dataset, npt.NDArray[np.uint8]]
tf = tensorflow()


def dropped(ids: list[int], step: int, *, layer: int = 0, seed: int = 0, rate: float = 0.25) -> npt.NDArray[Any]:
    """What dropout makes of ones, [n, 40, 50]."""
    made = Layers((40, 50), width=1, dropout=True, seed=0)
    for _ in range(layer):
        made.drop(made.inputs, rate)
    network = made.model(made.drop(made.inputs, rate), "dropout")
    found = network([np.ones((len(ids), 40, 50), np.float32), keys(np.array(ids), step, seed)], training=True)
    return np.asarray(found)


def test_masks_depend_on_the_sample_not_on_its_place() -> None:
    together = dropped([5, 9, 2, 7], 3)
    for ids in ([5, 9], [2], [7, 2]):  # as two or four ranks would have them
        for place, number in enumerate(ids):
            np.testing.assert_array_equal(dropped(ids, 3)[place], together[[5, 9, 2, 7].index(number)])


def test_masks_of_other_samples_steps_layers_and_seeds_are_others() -> None:
    found = [*dropped([5, 6], 3), *dropped([5], 4), *dropped([5], 3, layer=1), *dropped([5], 3, seed=1)]
    kept = [mask.astype(bool).ravel() for mask in found]
    for number, one in enumerate(kept):
        for other in kept[:number]:
            assert np.mean(one & other) == pytest.approx(0.75**2, abs=0.06)  # as of independent masks


def test_a_share_is_dropped_and_the_rest_makes_up_for_it() -> None:
    found = dropped(list(range(20)), 0)
    assert set(np.unique(found)) == {0, np.float32(1 / 0.75)}
    assert np.mean(found == 0) == pytest.approx(0.25, abs=0.01)


def test_dropout_can_be_left_out_and_is_off_in_evaluation() -> None:
    inputs = [np.random.default_rng(1).random((2, 16, 16, 3), np.float32), keys(np.array([1, 2]), 0)]
    for dropout, differs in ((True, True), (False, False)):
        network = build(HEPCNNB_CNN, (16, 16, 3), width=1 / 8, dropout=dropout)
        other = [inputs[0], keys(np.array([3, 4]), 9)]
        trained = [network(each, training=True).numpy() for each in (inputs, other)]
        assert bool((trained[0] != trained[1]).any()) == differs
        assert (network(inputs, training=False).numpy() == network(other, training=False).numpy()).all()


def test_gradients_of_a_batch_are_the_mean_over_its_halves(tiny: Callable[[str, str], Decoded]) -> None:
    # with dropout on: what makes training on several ranks the same as on one
    model = COSMOFLOW_MLPERF
    dataset, samples = tiny("cosmoflow", "mlperf-v0.7")
    samples = np.concatenate([samples, samples[:1]])
    sample = model.sample(dataset)
    network = build(model, sample.shape, width=1 / 4)

    def gradients(chosen: slice, ids: list[int]) -> list[Any]:
        with tf.GradientTape() as tape:
            lent = lend(batch_of(samples[chosen]))
            loss, _ = objective(model, sample, network, lent, keys(np.array(ids), 5), training=True)
        return [gradient.numpy() for gradient in tape.gradient(loss, network.trainable_variables)]

    whole = gradients(slice(0, 4), [0, 1, 2, 3])
    halves = [gradients(slice(0, 2), [0, 1]), gradients(slice(2, 4), [2, 3])]
    for one, first, second in zip(whole, *halves, strict=True):
        np.testing.assert_allclose(one, (first + second) / 2, rtol=1e-3, atol=1e-6)
