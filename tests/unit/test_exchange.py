"""Gradient exchange without ranks: options, fused buffers, and what hangs in the background."""

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.solo import Solo
from dlio_bench.harness.training.exchange import exchange as module
from dlio_bench.harness.training.exchange.background import Background
from dlio_bench.harness.training.exchange.choice import Choice
from dlio_bench.harness.training.exchange.exchange import Exchange, open_exchange
from dlio_bench.harness.training.exchange.fused import Fused
from dlio_bench.harness.training.exchange.mpi import OverMpi
from dlio_bench.harness.training.exchange.options import ExchangeOptions, levels

HOROVOD = Choice("horovod", "as asked")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "horovodd"}, "Did you mean 'horovod'"),
        ({"kind": "gloo"}, "Use horovod, mpi or none"),
        ({"lag": 2}, "lag of 2 steps"),
        ({"timeout": 0.0}, "Allow more than 0"),
        ({"timeout": float("nan")}, "Allow more than 0"),
        ({"timeout": float("inf")}, "Allow more than 0"),
        ({"buffer_bytes": 1}, "hold no number"),
    ],
)
def test_options_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_exchange(Solo(), ExchangeOptions(**changes))


@pytest.mark.parametrize(
    ("ranks", "per_node", "differs"), [(4, 2, True), (4, 1, False), (4, 4, False), (4, 8, False), (5, 2, True)]
)
def test_going_by_node_differs_where_there_are_nodes_with_ranks(ranks: int, per_node: int, differs: bool) -> None:
    assert levels(ExchangeOptions(hierarchical=True, ranks_per_node=per_node), ranks) == differs
    assert not levels(ExchangeOptions(ranks_per_node=per_node), ranks)


gradient = st_numpy.arrays(
    np.float32,
    st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    elements=st.floats(-1e4, 1e4, width=32),
)


@given(st.lists(gradient, max_size=5), st.sampled_from([4, 6, 1 << 20]), st.booleans())
def test_gradients_come_out_of_the_buffers_as_they_went_in(gradients: list[Any], most: int, fp16: bool) -> None:
    fused = Fused([one.shape for one in gradients], fp16=fp16)
    fused.pack(gradients)
    for piece in fused.pieces(most):
        assert fused.values[piece].nbytes <= most
        fused.sums[piece] = fused.values[piece]
    for one, expected in zip(fused.means(1), gradients, strict=True):
        assert one.shape == expected.shape
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, expected.astype(np.float16).astype(np.float32) if fp16 else expected)


class Hanging:
    """A library that never comes back, after `good` reductions; the test lets it go in the end."""

    def __init__(self, good: int = 0) -> None:
        self.good, self.end = good, threading.Event()

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], int]:
        if self.good == 0:
            self.end.wait()
        self.good -= 1
        return list(gradients), 8

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("lag", [0, 1])
def test_a_library_that_hangs_is_left_with_a_reason(lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.01)
    reducer = Hanging(good=1)
    exchange = Exchange(Solo(), HOROVOD, lambda: reducer, ExchangeOptions(timeout=1.0, lag=lag))
    for _ in range(1 + lag):
        exchange.reduce([np.ones(2)])
    with pytest.raises(EnvironmentFailure, match=r"exchange 2 by horovod was not over after 1 s, says rank 0 of 1"):
        exchange.reduce([np.ones(2)])
    reducer.end.set()


def test_with_a_lag_the_trainer_goes_on_while_gradients_travel() -> None:
    reducer = Hanging()
    exchange = Exchange(Solo(), HOROVOD, lambda: reducer, ExchangeOptions(timeout=60, lag=1))
    first = exchange.reduce([np.ones((2, 3), np.float32)])  # back, although the reduction is not over
    assert [one.tolist() for one in first] == [np.zeros((2, 3)).tolist()]
    reducer.end.set()
    assert exchange.reduce([np.full(1, 5.0)])[0].tolist() == np.ones((2, 3)).tolist()
    exchange.close()
    assert [cost.nbytes for cost in exchange.costs] == [8, 8]


class Failing(Hanging):
    """Gives up by itself."""

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], int]:
        raise EnvironmentFailure("Horovod gave the exchange up: stalled")


def test_a_failure_in_the_background_reaches_the_trainer() -> None:
    exchange = Exchange(Solo(), HOROVOD, Failing, ExchangeOptions())
    with pytest.raises(EnvironmentFailure, match="stalled"):
        exchange.reduce([np.ones(2)])


def test_the_background_thread_ends_with_the_exchange() -> None:
    before = threading.active_count()
    exchange = Exchange(
        Solo(), Choice("mpi", "as asked"), lambda: OverMpi(Solo(), ExchangeOptions()), ExchangeOptions()
    )
    assert exchange.reduce([np.full(2, 3.0)])[0].tolist() == [3.0, 3.0]
    exchange.close()
    assert threading.active_count() == before


def test_things_are_done_one_after_another() -> None:
    thread, done = Background("test"), list[int]()
    pending = [thread.begin(lambda number=number: done.append(number)) for number in range(9)]
    for one in pending:
        one.wait(60)
    assert done == list(range(9))
    assert all(one.started <= one.ended <= later.started for one, later in pairwise(pending))
    thread.close(60)
