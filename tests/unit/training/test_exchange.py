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
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.training.exchange import exchange as module
from dlio_bench.harness.training.exchange.exchange import Background, Choice, Exchange, open_exchange
from dlio_bench.harness.training.exchange.mpi import Fused, OverMpi
from dlio_bench.harness.training.exchange.options import ExchangeOptions, by_node, levels, parts

HOROVOD = Choice("horovod", "as asked")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
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


@given(st.integers(0, 5000), st.integers(1, 8))
def test_parts_are_all_of_the_numbers_each_once(count: int, leaders: int) -> None:
    cut = parts(count, leaders)
    assert len(cut) == leaders
    assert [number for part in cut for number in range(count)[part]] == list(range(count))
    assert all(len(range(count)[part]) % 256 == 0 for part in cut[:-1]) or count < 256 * leaders
    if count >= 256 * leaders and leaders > 1:
        assert cut[0].stop == count // 256 // leaders * 256  # as published


def test_parts_by_hand() -> None:
    assert [part.stop - part.start for part in parts(2047, 4)] == [256, 256, 256, 1279]  # published: 511 in the last
    assert [part.stop - part.start for part in parts(1023, 4)] == [1023, 0, 0, 0]


@given(st.integers(1, 12), st.integers(2, 8), st.integers(1, 8))
def test_leaders_are_ranks_of_their_node_each_of_one_part(per_node: int, nodes: int, leaders: int) -> None:
    asked = ExchangeOptions(hierarchical=True, leaders=min(leaders, per_node), ranks_per_node=per_node)
    laid = by_node(asked, per_node * nodes)
    if per_node == 1:
        assert laid is None
        return
    assert laid is not None
    for node in range(nodes):
        chosen = [laid.leader_of_part(node, number) for number in range(laid.leaders)]
        assert sorted(set(chosen)) == chosen  # different ones
        assert set(chosen) <= set(laid.ranks(node))
        assert [laid.part_led_by(rank) for rank in chosen] == list(range(laid.leaders))
    led = [rank for rank in range(per_node * nodes) if laid.part_led_by(rank) is not None]
    assert sorted(rank for number in range(laid.leaders) for rank in laid.among_leaders(number)) == led


def test_leaders_are_those_of_the_published_runs() -> None:
    def local(per_node: int, leaders: int) -> list[int]:
        laid = by_node(ExchangeOptions(hierarchical=True, leaders=leaders, ranks_per_node=per_node), 2 * per_node)
        assert laid is not None
        return [laid.leader_of_part(1, number) - per_node for number in range(leaders)]

    assert local(6, 4) == [0, 1, 3, 4]  # Summit: two of each processor's three
    assert local(8, 4) == [0, 2, 4, 6]  # the DGX branch
    uneven = by_node(ExchangeOptions(hierarchical=True, leaders=3, ranks_per_node=3), 7)
    assert uneven is not None
    assert uneven.leaders == 1  # the last node has one rank


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
    before = set(threading.enumerate())
    exchange = Exchange(
        Solo(), Choice("mpi", "as asked"), lambda: OverMpi(Solo(), ExchangeOptions()), ExchangeOptions()
    )
    assert exchange.reduce([np.full(2, 3.0)])[0].tolist() == [3.0, 3.0]
    exchange.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("lag", [0, 1])
def test_reductions_of_several_shapes_use_the_same_buffers_in_each_step(lag: int) -> None:
    reducer = OverMpi(Solo(), ExchangeOptions(lag=lag))
    means: list[Any] = []
    for step in range(4):
        for shape in ((2, 3), (4,)):
            means.append(reducer.reduce([np.full(shape, step, np.float32)])[0][0])
            assert means[-1].shape == shape
    for earlier, later in pairwise([means[step * 2 : step * 2 + 2] for step in range(4)]):
        assert all(np.shares_memory(a, b) == (lag == 0) for a, b in zip(earlier, later, strict=True))
    assert all(np.shares_memory(means[number], means[number + 2 * (1 + lag)]) for number in range(2))
    assert [mean.flat[0] for mean in means[-2:]] == [3, 3]


def test_things_are_done_one_after_another() -> None:
    thread, done = Background("test"), list[int]()
    pending = [thread.begin(lambda number=number: done.append(number)) for number in range(9)]
    for one in pending:
        one.wait(60)
    assert done == list(range(9))
    assert all(one.started <= one.ended <= later.started for one, later in pairwise(pending))
    thread.close(60)
