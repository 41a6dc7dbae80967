"""What holds of every order: each sample as often as declared, whole steps, alike twice, other in other epochs."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import ORDERS, Ids, Order, Shape, every_sample_once, find_order, steps_of

pytestmark = pytest.mark.slow

# every order there is, and those with a number also with a small one
NAMES = [*ORDERS, "buffered-shuffle(3)", "subset-shuffle(2)"]
ONCE = [name for name in NAMES if find_order(name).exactly_once]
SHUFFLES = [name for name in NAMES if name != "sequential"]
EXAMPLES = 40  # for each order


@st.composite
def shapes(draw: st.DrawFn, last: str = "drop") -> Shape:
    per_node, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    ranks = per_node * nodes
    sizes = draw(st.one_of(st.none(), st.lists(st.integers(1, 9), min_size=ranks, max_size=ranks + 12)))
    bounds = None if sizes is None else np.cumsum([0, *sizes], dtype=np.int64)
    return Shape(
        samples=draw(st.integers(ranks, 200)) if bounds is None else int(bounds[-1]),
        ranks=ranks,
        batch=draw(st.integers(1, 4)),
        bounds=bounds,
        ranks_per_node=per_node,
        shard=draw(st.sampled_from(["rank", "node"])),
        last=last,
        first=draw(st.sampled_from([0, 1000])),
    )


def fitted(name: str, shape: Shape) -> tuple[Order, Shape]:
    order = find_order(name)
    try:
        return order, order.fit(shape)
    except UsageError:
        assume(False)  # a share of files that does not fill a step: has a test of its own
        raise


def plans(order: Order, shape: Shape, epoch: int, seed: int) -> list[Ids]:
    return [order(shape, rank, epoch, seed) for rank in range(shape.ranks)]


def batches(parts: list[Ids]) -> list[Ids]:
    return [own for part in parts for own in steps_of(part)]


epochs, seeds = st.integers(0, 4), st.integers(0, 2**32)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES)
@given(shape=shapes(), epoch=epochs, seed=seeds)
def test_every_rank_gets_equal_whole_steps_alike_twice_and_no_sample_comes_twice(
    name: str, shape: Shape, epoch: int, seed: int
) -> None:
    order, fit = fitted(name, shape)
    parts = plans(order, shape, epoch, seed)
    assert {(part.shape, part.dtype) for part in parts} == {((fit.steps, shape.batch), np.dtype(np.int64))}
    for part in parts:
        assert len(np.unique(part)) == part.size  # no rank gets a sample twice
        assert ((part >= shape.first) & (part < shape.first + shape.samples)).all()
    if name in ONCE:  # what is left out is counted
        ids = np.concatenate(parts, axis=None)
        assert len(np.unique(ids)) == len(ids) == fit.delivered == shape.samples - fit.dropped
        assert fit.padded == 0
    again = plans(find_order(name), replace(shape), epoch, seed)
    at_zero = plans(order, replace(shape, first=0), epoch, seed)
    for part, same, from_zero in zip(parts, again, at_zero, strict=True):
        assert (part == same).all()
        assert (part == from_zero + shape.first).all()


@pytest.mark.parametrize("name", ONCE)
@settings(max_examples=EXAMPLES)
@given(shape=shapes(last="pad"), epoch=epochs, seed=seeds)
def test_padding_brings_every_sample_and_counts_the_second_times(
    name: str, shape: Shape, epoch: int, seed: int
) -> None:
    order, fit = fitted(name, shape)
    ids = np.concatenate(plans(order, shape, epoch, seed), axis=None)
    assert len(np.unique(ids)) == shape.samples - fit.dropped
    assert len(ids) == fit.delivered == shape.samples - fit.dropped + fit.padded
    if name != "node-shuffle":
        assert fit.dropped == 0
    else:  # what stage-partition leaves on no node
        left = np.arange(shape.files - shape.files % shape.nodes, shape.files, dtype=np.int64)
        assert fit.dropped == len(shape.samples_of(left)[0])


@pytest.mark.parametrize("name", ONCE)
@settings(max_examples=EXAMPLES)
@given(shape=shapes(last="keep"), epoch=epochs, seed=seeds)
def test_keeping_brings_every_sample_once_in_batches_that_only_end_smaller(
    name: str, shape: Shape, epoch: int, seed: int
) -> None:
    order, fit = fitted(name, shape)
    parts = plans(order, shape, epoch, seed)
    assert {part.shape for part in parts} == {(fit.steps, shape.batch)}
    found = np.concatenate(batches(parts))
    assert sorted(found - shape.first) == list(range(shape.samples))
    assert fit.delivered == fit.different == shape.samples
    assert (fit.dropped, fit.padded) == (0, 0)
    for part in parts:
        assert (np.diff((part >= 0).ravel().astype(int)) <= 0).all()  # what is missing is missing at the end
    if name == "global-shuffle":  # dealt as evenly as can be
        sizes = [sum(map(len, steps_of(part))) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("name", "last"),
    [(name, last) for name in NAMES for last in ("drop", "pad", "keep") if last != "keep" or name in ONCE],
)
@settings(max_examples=15)  # for each order and each way to end
@given(data=st.data(), epoch=epochs, seed=seeds)
def test_ranks_that_hold_parts_of_one_model_all_read_what_one_rank_would(
    name: str, last: str, data: st.DataObject, epoch: int, seed: int
) -> None:
    shape = replace(data.draw(shapes(last)), shard="job")
    order, fit = fitted(name, shape)
    alone = replace(shape, ranks=1, ranks_per_node=1, shard="rank")
    own = order(alone, 0, epoch, seed)
    for part in plans(order, shape, epoch, seed):
        assert (part == own).all()
    counted = ("steps", "step", "delivered", "different", "dropped", "padded")
    assert [getattr(fit, one) for one in counted] == [getattr(order.fit(alone), one) for one in counted]
    assert (fit.copies, order.fit(alone).copies) == (shape.ranks, 1)
    ids = own[own >= 0]
    if name in ONCE:
        assert len(np.unique(ids)) == fit.different
        assert len(ids) == fit.delivered


def test_an_order_that_leaves_samples_out_cannot_keep_all() -> None:
    with pytest.raises(UsageError, match="cannot bring each sample once"):
        ORDERS["subset-shuffle"](Shape(12, 2, 2, last="keep"), 0, 0, 1)


@pytest.mark.parametrize("name", ["sequential", "global-shuffle"])
@given(samples=st.integers(0, 300), ranks=st.integers(1, 9), batch=st.integers(1, 7))
def test_orders_of_samples_drop_or_pad_less_than_a_step(name: str, samples: int, ranks: int, batch: int) -> None:
    drop = Shape(samples, ranks, batch)
    pad = replace(drop, last="pad")
    assert drop.dropped < ranks * batch
    assert pad.padded < ranks * batch
    order = ORDERS[name]
    for shape in (drop, pad):
        ids = np.concatenate(plans(order, shape, 1, 2), axis=None)
        assert len(ids) == shape.delivered
        assert len(np.unique(ids)) == samples - shape.dropped


@given(shape=shapes(last="pad"))
def test_an_epoch_is_filled_up_from_its_own_start(shape: Shape) -> None:
    for order in (ORDERS["sequential"], ORDERS["global-shuffle"]):
        shape = replace(shape, shard="rank")
        parts = [part - shape.first for part in plans(order, shape, 1, 2)]
        # the global stream, step by step or share after share
        stream = np.concatenate(parts, axis=None if order.name == "sequential" else 1).ravel()
        assert (stream[shape.samples :] == stream[: shape.padded]).all()


@pytest.mark.parametrize("shard", ["rank", "node"])
@pytest.mark.parametrize("name", SHUFFLES)
def test_other_epochs_and_seeds_give_other_plans(name: str, shard: str) -> None:
    shape = Shape(600, 4, 2, bounds=np.arange(0, 601, 5), ranks_per_node=2, shard=shard)
    found = {tuple(find_order(name)(shape, 1, epoch, seed).ravel()) for epoch in range(3) for seed in range(3)}
    assert len(found) == 9


@given(samples=st.integers(0, 200), ranks=st.integers(1, 9), batch=st.integers(1, 7))
def test_the_verification_pass_covers_everything_once(samples: int, ranks: int, batch: int) -> None:
    batches = [ids for rank in range(ranks) for ids in every_sample_once(samples, ranks, rank, batch)]
    assert np.concatenate([*batches, np.zeros(0, np.int64)]).tolist() == list(range(samples))
    assert all(0 < len(ids) <= batch for ids in batches)
