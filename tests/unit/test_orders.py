"""Orders are pure functions: exactly once over all ranks, alike everywhere, new every epoch where they shuffle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import ORDERS, Shape, every_sample_once, permutation
from dlio_bench.harness.plan.policies import ALIASES, DELIVERIES, POLICIES, find
from dlio_bench.harness.readers.registry import READERS

shapes = st.builds(Shape, samples=st.integers(0, 300), ranks=st.integers(1, 9), batch=st.integers(1, 7))


@pytest.mark.parametrize("name", ["sequential", "global-shuffle"])
@given(shape=shapes, epoch=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_every_rank_gets_whole_batches_and_no_sample_comes_twice(
    name: str, shape: Shape, epoch: int, seed: int
) -> None:
    parts = [ORDERS[name](shape, rank, epoch, seed) for rank in range(shape.ranks)]
    assert {part.shape for part in parts} == {(shape.steps, shape.batch)}
    ids = np.concatenate([part.ravel() for part in parts])
    assert len(np.unique(ids)) == len(ids) == shape.samples - shape.dropped
    assert shape.dropped < shape.ranks * shape.batch
    if len(ids):
        assert ids.min() >= 0
        assert ids.max() < shape.samples


def test_sequential_is_each_ranks_own_share_front_to_back_in_every_epoch() -> None:
    shape = Shape(samples=12, ranks=2, batch=3)
    assert ORDERS["sequential"](shape, 1, 0, 9).tolist() == [[6, 7, 8], [9, 10, 11]]
    assert ORDERS["sequential"](shape, 1, 3, 7).tolist() == [[6, 7, 8], [9, 10, 11]]


def test_global_shuffle_slices_one_permutation_batch_by_batch() -> None:
    shape = Shape(samples=12, ranks=2, batch=3)
    order = permutation(12, epoch=1, seed=5).reshape(2, 2, 3)
    for rank in range(2):
        assert ORDERS["global-shuffle"](shape, rank, 1, 5).tolist() == order[:, rank].tolist()


def test_the_permutation_is_the_same_on_every_machine() -> None:
    # golden: Philox words, sorted; a change here changes every published seed
    assert permutation(10, epoch=0, seed=1).tolist() == GOLDEN


GOLDEN = [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]


def test_shuffles_differ_between_epochs_and_seeds() -> None:
    orders = {tuple(permutation(100, epoch, seed)) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9


@given(samples=st.integers(0, 200), ranks=st.integers(1, 9), batch=st.integers(1, 7))
def test_the_verification_pass_covers_everything_once(samples: int, ranks: int, batch: int) -> None:
    batches = [ids for rank in range(ranks) for ids in every_sample_once(samples, ranks, rank, batch)]
    assert np.concatenate([*batches, np.zeros(0, np.int64)]).tolist() == list(range(samples))
    assert all(0 < len(ids) <= batch for ids in batches)


def test_the_policy_table_has_the_readers_of_the_design() -> None:
    assert find("prefetch") is POLICIES[ALIASES["prefetch"]]
    assert find("prefetch").delivery == "ahead"
    assert (find("naive").order, find("naive").placement, find("naive").delivery) == ("sequential", "none", "on demand")
    assert {"staged", "tfdata", "clairvoyant", "cooperative", "upstream"} <= set(POLICIES)
    assert set(READERS) <= set(DELIVERIES)


@pytest.mark.parametrize(
    ("name", "says"),
    [("prefetsh", "Did you mean 'prefetch'"), ("clairvoyant", "cannot run it yet"), ("", "no reader ''")],
)
def test_readers_that_cannot_be_run_are_refused_by_name(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refusal:
        find(name)
    assert "naive" in str(refusal.value)
