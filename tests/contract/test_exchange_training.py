"""Ranks that exchange gradients train as one rank does on all samples; tests/mpi/test_exchange_worlds.py runs it.

By node, the means that they train on are those of test_exchange.py.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.harness.cluster.comm import Comm, Solo, run_on_all_ranks
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions
from tests.needs import require
from tests.ranks import WORLD

pytestmark = pytest.mark.slow

STEPS, BATCH, RATE = 8, 8, 0.05
Arrays = list[npt.NDArray[Any]]


@pytest.fixture(params=["mpi", "horovod"] if WORLD > 1 else ["mpi"])
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "horovod":
        require("horovod")
    return {"kind": request.param}


def build(seed: int) -> Any:
    """No dropout; batch normalisation, frozen, with statistics that do something."""
    tf = tensorflow()
    tf.keras.utils.set_random_seed(seed)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((8, 8, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    model.layers[1].set_weights([np.linspace(0.5, 1.5, 4) + offset for offset in range(4)])
    return model


@cache
def start(seed: int) -> Arrays:
    """The weights that a network begins with."""
    return [np.array(one) for one in build(seed).get_weights()]


@cache
def pupil() -> tuple[Any, Any]:
    """A network, which every training sets to its own start, and (x, y) -> its gradients, compiled once."""
    tf = tensorflow()
    model = build(0)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = [one.value for one in model.trainable_variables]

    @tf.function(autograph=False)  # type: ignore[untyped-decorator, unused-ignore]  # it has no types
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=False))
        return tape.gradient(value, weights)

    return model, step


@cache
def samples() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """x float32 [step, sample, 8, 8, 2] and its classes."""
    numbers = np.random.Generator(np.random.Philox(11))
    x = numbers.standard_normal((STEPS, BATCH, 8, 8, 2)).astype(np.float32)
    return x, (x.mean(axis=(2, 3, 4)) > 0).astype(np.int64) + (x[..., 0].mean(axis=(2, 3)) > 0)


def train(comm: Comm, seed: int, **options: Any) -> tuple[Arrays, float]:
    """The weights after all steps of SGD on this rank's share of each batch, and the largest gradient that was met."""
    tf = tensorflow()
    (model, step), (x, y) = pupil(), samples()
    model.set_weights(start(seed))
    exchange = open_exchange(comm, ExchangeOptions(**({"timeout": 60.0} | options)))
    for variable, value in zip(model.variables, exchange.broadcast(model.variables), strict=True):
        variable.assign(value)
    optimizer = tf.keras.optimizers.SGD(RATE)
    largest = 0.0
    for number in range(STEPS):
        mine = slice(comm.rank, None, comm.size)
        gradients = step(tf.constant(x[number][mine]), tf.constant(y[number][mine]))
        largest = max(largest, *(float(np.abs(one).max()) for one in gradients))
        means = [tf.convert_to_tensor(one) for one in exchange.reduce(gradients)]
        optimizer.apply(means, model.trainable_variables)
    exchange.close()
    return [np.array(one) for one in model.get_weights()], largest


@pytest.fixture(scope="module")
def alone(comm: Comm) -> tuple[Arrays, float]:
    """What one rank makes of all samples, for all of them."""
    [made, *_] = run_on_all_ranks(comm, lambda: train(Solo(), seed=0) if comm.rank == 0 else None)
    assert made is not None
    return made


def test_ranks_train_as_one_rank_does_on_the_whole_batch(
    comm: Comm, way: dict[str, Any], alone: tuple[Arrays, float]
) -> None:
    together, _ = train(comm, seed=comm.rank, **way)  # other initial weights on each: those of rank 0 count
    for one, expected in zip(together, alone[0], strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-6)
    assert any(np.abs(one - begun).max() > 0.01 for one, begun in zip(alone[0], start(0), strict=True))


def test_float16_stays_within_what_its_roundings_allow(
    comm: Comm, way: dict[str, Any], alone: tuple[Arrays, float]
) -> None:
    """Each step adds an error of at most the rate times (ranks + 1) roundings of the largest gradient.

    Twice as much is allowed, since a step's gradients are taken at weights that are off already.
    """
    expected_weights, largest = alone
    together, _ = train(comm, seed=comm.rank, fp16=True, **way)
    bound = 2 * STEPS * RATE * (WORLD + 1) * 2.0**-11 * largest
    for one, expected in zip(together, expected_weights, strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=bound)


@pytest.fixture(scope="module")
def lagged(comm: Comm) -> Arrays:
    """What one rank makes with a lag, for all of them."""
    [made, *_] = run_on_all_ranks(comm, lambda: lagged_by_hand() if comm.rank == 0 else None)
    assert made is not None
    return made


def lagged_by_hand() -> Arrays:
    """What step t makes of the whole batch's gradient at w(t) where it goes on with that of step t - 1."""
    tf = tensorflow()
    model, (x, y) = build(0), samples()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = [one.value for one in model.trainable_variables]
    before: list[Any] = [tf.zeros_like(one) for one in weights]
    for number in range(STEPS):
        with tf.GradientTape() as tape:
            value = loss(y[number], model(tf.constant(x[number]), training=False))
        now = tape.gradient(value, weights)
        for weight, gradient in zip(weights, before, strict=True):
            weight.assign_sub(RATE * gradient)
        before = now
    return [np.array(one) for one in model.get_weights()]


def test_a_lag_trains_as_the_reference_by_hand(
    comm: Comm, way: dict[str, Any], alone: tuple[Arrays, float], lagged: Arrays
) -> None:
    late, _ = train(comm, seed=comm.rank, lag=1, **way)
    for one, expected in zip(late, lagged, strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-6)
    assert any(not np.allclose(one, other, rtol=1e-3) for one, other in zip(late, alone[0], strict=True))
