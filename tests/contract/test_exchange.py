"""One suite for every way gradients are averaged. `tests/mpi/test_exchange_worlds.py` runs it with 4 ranks."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.training.exchange.exchange import Exchange, open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions
from tests.needs import require
from tests.ranks import WORLD

pytestmark = pytest.mark.slow

Arrays = list[npt.NDArray[Any]]

# Ways that add the same numbers in different orders; one fills nodes unevenly, another cuts gradients in the middle.
FLAT = [{"kind": "mpi"}, {"kind": "horovod"}]
BY_NODE: list[dict[str, Any]] = [one | {"hierarchical": True, "ranks_per_node": 2} for one in FLAT]
UNEVEN = {"kind": "mpi", "hierarchical": True, "ranks_per_node": 3}
LED: list[dict[str, Any]] = [one | {"leaders": 2} for one in BY_NODE]
CUT = {"kind": "mpi", "buffer_bytes": 12}
# One rank has nobody to exchange gradients with, whichever way it is asked to; two are one node.
WAYS: list[dict[str, Any]] = {1: FLAT[:1], 2: [*FLAT, CUT]}.get(WORLD, [*FLAT, CUT, *BY_NODE, UNEVEN, *LED])
# What happens around a sum, and not in it, is the same code for all ways of a kind.
KINDS = WAYS[:2]


def by(ways: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "way", ways, ids=lambda way: "-".join(str(value) for value in way.values() if value is not True)
    )


every_way, each_kind = by(WAYS), by(KINDS)


@pytest.fixture(autouse=True)
def _horovod_where_asked(request: pytest.FixtureRequest) -> None:
    callspec = getattr(request.node, "callspec", None)
    way = callspec.params.get("way", {}) if callspec else {}
    if way.get("kind") == "horovod" and WORLD > 1:
        require("horovod")


@contextmanager
def opened(comm: Comm, **options: Any) -> Iterator[Exchange]:
    exchange = open_exchange(comm, ExchangeOptions(**({"timeout": 60.0} | options)))
    yield exchange
    exchange.close()


def gradients(rank: int, seed: int = 0) -> Arrays:
    """Uneven ones: a matrix, a vector, nothing, a scalar; normal, scaled over ten powers of two."""
    numbers = np.random.Generator(np.random.Philox(key=[seed, rank]))
    shapes: list[tuple[int, ...]] = [(7, 5), (3,), (0, 4), ()]
    return [
        np.asarray(numbers.standard_normal(shape) * np.exp2(-numbers.integers(0, 10, shape)), np.float32)
        for shape in shapes
    ]


def mean(seed: int = 0) -> Arrays:
    everybody = zip(*(gradients(rank, seed) for rank in range(WORLD)), strict=True)
    return [np.mean(np.stack(group).astype(np.float64), axis=0) for group in everybody]


def arrays(found: list[Any]) -> Arrays:
    return [np.array(one) for one in found]


@every_way
def test_everybody_gets_the_mean(comm: Comm, way: dict[str, Any]) -> None:
    with opened(comm, **way) as exchange:
        for seed in range(3):
            found = arrays(exchange.reduce(gradients(comm.rank, seed)))
            for one, expected in zip(found, mean(seed), strict=True):
                assert one.dtype == np.float32
                assert one.shape == expected.shape
                np.testing.assert_allclose(one, expected, rtol=1e-6, atol=1e-7)
            assert len({b"".join(one.tobytes() for one in theirs) for theirs in comm.allgather(found)}) == 1


@every_way
def test_numbers_of_more_than_a_part_are_the_plain_average(comm: Comm, way: dict[str, Any]) -> None:
    """Of 2,047 numbers the published code leaves some out, with four leaders; 3 make no part for a second one."""
    with opened(comm, **way) as exchange:
        for count in (3, 513, 2047):
            numbers = np.arange(count, dtype=np.float32)
            [found] = exchange.reduce([numbers * (comm.rank + 1)])
            assert np.array(found).tolist() == (numbers * ((WORLD + 1) / 2)).tolist()  # exact: whole numbers


@each_kind
def test_tensors_and_other_precisions_go_in_and_float32_comes_out(comm: Comm, way: dict[str, Any]) -> None:
    tf = tensorflow()
    with opened(comm, **way) as exchange:
        for kind in (tf.float32, tf.float16, tf.float64):
            given = [tf.cast(tf.fill([3], comm.rank + 1.0), kind), tf.cast(tf.ones([2, 2]), kind)]
            found = exchange.reduce(given)
            np.testing.assert_allclose(np.array(found[0]), np.full(3, (WORLD + 1) / 2))
            np.testing.assert_allclose(np.array(found[1]), np.ones((2, 2)))


@each_kind
def test_no_gradients_and_others_later(comm: Comm, way: dict[str, Any]) -> None:
    with opened(comm, **way) as exchange:
        assert exchange.reduce([]) == []
        assert np.array(exchange.reduce([np.full(2, comm.rank, np.float32)])[0]).tolist() == [(WORLD - 1) / 2] * 2
        assert np.array(exchange.reduce([np.ones(5, np.float32)])[0]).tolist() == [1.0] * 5


@every_way
def test_float16_is_within_its_bound(comm: Comm, way: dict[str, Any]) -> None:
    """Each number is rounded once on its way in and each sum once: at most WORLD roundings of partial sums.

    A rounding is off by half a unit in the last place: 2^-11 of the number, or 2^-25 below the normal range (IEEE 754).
    """
    with opened(comm, **way, fp16=True) as exchange:
        found = arrays(exchange.reduce(gradients(comm.rank)))
        everybody = [gradients(rank) for rank in range(WORLD)]
        for index, (one, expected) in enumerate(zip(found, mean(), strict=True)):
            assert one.dtype == np.float32
            size = sum(np.abs(theirs[index]) for theirs in everybody) / WORLD
            bound = (WORLD + 1) * (2.0**-11 * size + 2.0**-25)
            assert np.all(np.abs(one - expected) <= bound)
        numbers = sum(one.size for one in found)
        if WORLD > 1:
            assert not np.array_equal(found[0], mean()[0].astype(np.float32))  # it was used
            assert exchange.costs[-1].nbytes == 2 * numbers


@each_kind
def test_with_a_lag_means_come_a_step_late(comm: Comm, way: dict[str, Any]) -> None:
    with opened(comm, **way, lag=1) as exchange:
        found = [arrays(exchange.reduce(gradients(comm.rank, seed))) for seed in range(4)]
        last = exchange.pending_means()
        assert last is not None
        found.append(arrays(last))
    for one in found[0]:
        assert not one.any()
    for seed in range(4):
        for one, expected in zip(found[seed + 1], mean(seed), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-6, atol=1e-7)


@each_kind
@pytest.mark.parametrize("fp16", [False, True])
def test_means_in_use_are_not_written_over_by_those_under_way(comm: Comm, way: dict[str, Any], fp16: bool) -> None:
    with opened(comm, **way, lag=1, fp16=fp16) as exchange:
        exchange.reduce(gradients(comm.rank, 0))
        held = exchange.reduce(gradients(comm.rank, 1))  # those of 1 travel
        exchange.pending_means()
        for one, expected in zip(held, mean(0), strict=True):
            np.testing.assert_allclose(np.array(one), expected, rtol=1e-6, atol=0.01 if fp16 else 1e-7)


@each_kind
def test_a_lagged_training_goes_on_where_it_was(comm: Comm, way: dict[str, Any]) -> None:
    with opened(comm, **way, lag=1) as exchange:
        exchange.reduce(gradients(comm.rank, 0))
        kept = exchange.pending_means()
        assert kept is not None
        kept = arrays(kept)
    with opened(comm, **way, lag=1) as exchange:
        exchange.resume(kept)
        found = arrays(exchange.reduce(gradients(comm.rank, 1)))
    assert [one.tobytes() for one in found] == [one.tobytes() for one in kept]


@each_kind
def test_a_lagged_reduction_does_not_keep_the_trainer(comm: Comm, way: dict[str, Any]) -> None:
    with opened(comm, **way, lag=1) as exchange:
        exchange.reduce(gradients(comm.rank))  # the first one traces a graph
        exchange.pending_means()
        comm.barrier()
        if comm.rank == 0:
            exchange.reduce(gradients(comm.rank))  # comes back although nobody else has come
        comm.barrier()
        if comm.rank != 0:
            exchange.reduce(gradients(comm.rank))
        exchange.pending_means()


@each_kind
@pytest.mark.parametrize("lag", [0, 1])
def test_costs_tell_what_was_waited_and_what_was_not(comm: Comm, way: dict[str, Any], lag: int) -> None:
    entered = []
    with opened(comm, **way, lag=lag) as exchange:
        for _ in range(3):
            entered.append(time.perf_counter())
            exchange.reduce(gradients(comm.rank))
        exchange.pending_means()
    numbers = 0 if WORLD == 1 else sum(one.size for one in gradients(0))
    assert [cost.nbytes for cost in exchange.costs] == [4 * numbers] * 3
    for cost, last in zip(exchange.costs, np.max(comm.allgather(entered), axis=0), strict=True):
        assert last <= cost.ended or WORLD == 1  # one clock: nobody is done before the last has come
        assert cost.started <= cost.ended
        assert cost.exposed >= (0 if lag else cost.ended - cost.started)


@each_kind
def test_weights_of_the_first_rank_reach_all(comm: Comm, way: dict[str, Any]) -> None:
    tf = tensorflow()

    def weights(rank: int) -> list[Any]:
        return [
            np.full((2, 3), rank + 0.5, np.float32),
            np.array(7 + rank, np.int64),  # an optimiser's count
            np.array([rank, 2**32 - 1 - rank], np.uint32),  # a seed of Keras
            np.array([], np.float16),
            tf.Variable(tf.fill([4], float(rank))),
            np.asfortranarray(np.arange(6.0).reshape(2, 3) * (rank + 1)),
        ]

    with opened(comm, **way) as exchange:
        found = exchange.broadcast(weights(comm.rank))
    for one, first in zip(found, weights(0), strict=True):
        expected = first if isinstance(first, np.ndarray) else first.numpy()
        assert one.dtype == expected.dtype
        assert one.tolist() == expected.tolist()


def test_none_leaves_everybody_alone(comm: Comm) -> None:
    with opened(comm, kind="none") as exchange:
        given = gradients(comm.rank)
        assert all(one is other for one, other in zip(exchange.reduce(given), given, strict=True))
        assert exchange.choice.why == ("as asked" if WORLD > 1 else "one rank has nobody to exchange gradients with")


def test_horovod_is_taken_where_it_works(comm: Comm) -> None:
    if WORLD > 1:
        require("horovod")
    with opened(comm) as exchange:
        assert exchange.choice.kind == ("horovod" if WORLD > 1 else "none")


def _lacking(rank: int) -> Any:
    def load() -> None:
        if rank == WORLD - 1:
            raise EnvironmentFailure("There is no Horovod.")

    return load


def test_mpi_is_taken_where_a_rank_lacks_horovod(comm: Comm) -> None:
    exchange = open_exchange(comm, ExchangeOptions(), _lacking(comm.rank))
    if WORLD > 1:
        assert exchange.choice.kind == "mpi"
        assert exchange.choice.why == f"Horovod is not used; rank {WORLD - 1}: There is no Horovod."
    exchange.close()


def test_horovod_that_was_asked_for_and_is_not_there_is_a_failure(comm: Comm) -> None:
    if WORLD == 1:
        return
    with pytest.raises(EnvironmentFailure, match=f"as asked; rank {WORLD - 1}: There is no Horovod"):
        open_exchange(comm, ExchangeOptions(kind="horovod"), _lacking(comm.rank))
