"""Draws: the shuffle buffer, and random words that no two streams share."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.plan.draws import Purpose, draw_words, permutation_of, through_buffer
from dlio_bench.harness.plan.orders import Ids, Shape, find_order


@given(items=st.integers(0, 60), size=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_a_buffer_shuffles_as_tensorflow_documents_it(items: int, size: int, seed: int) -> None:
    size = min(size, items)
    slots = draw_words(Purpose.BUFFER_SLOTS, 0, 0, seed, items - size)
    drain = draw_words(Purpose.BUFFER_DRAIN, 0, 0, seed, size)
    buffer, rest, expected = list(range(size)), iter(range(size, items)), []
    for word in slots.tolist():
        expected.append(buffer[word % size])
        buffer[word % size] = next(rest)
    expected += [item for _, item in sorted(zip(drain.tolist(), buffer, strict=True))]
    found = through_buffer(slots, drain)
    assert found.tolist() == expected
    assert sorted(expected) == list(range(items))
    assert (found - np.arange(items) < max(size, 1)).all()  # nobody is more than size - 1 early


def test_a_buffer_displaces_items_as_far_as_an_independent_one() -> None:
    items, size = 4000, 50
    order = find_order(f"buffered-shuffle({size})")
    ours = np.concatenate([order(Shape(items, 1, 1), 0, 0, seed).ravel() - np.arange(items) for seed in range(10)])
    theirs = np.concatenate([plain_buffer(items, size, random.Random(seed)) - np.arange(items) for seed in range(10)])
    grid = np.unique(np.concatenate([ours, theirs]))
    gap = [np.searchsorted(np.sort(moved), grid, side="right") / len(moved) for moved in (ours, theirs)]
    assert np.abs(gap[0] - gap[1]).max() < 0.02  # Kolmogorov-Smirnov: 0.0136 at 5 % of 40,000 each
    assert ours.max() == size - 1


def plain_buffer(items: int, size: int, chance: random.Random) -> Ids:
    buffer, out = list(range(size)), []
    for item in range(size, items):
        slot = chance.randrange(size)
        out.append(buffer[slot])
        buffer[slot] = item
    chance.shuffle(buffer)
    return np.array(out + buffer)


@given(st.lists(st.integers(2**64 - 40, 2**64 - 1) | st.integers(0, 40), max_size=60))
def test_words_that_differ_little_or_not_at_all_are_sorted_stably(drawn: list[int]) -> None:
    array = np.array(drawn, np.uint64)
    assert permutation_of(array).tolist() == np.argsort(array, kind="stable").tolist()


def test_no_two_streams_share_a_word() -> None:
    drawn = [
        draw_words(purpose, unit, epoch, seed, 200)
        for purpose in Purpose
        for unit in (0, 1, 1023)
        for epoch in (0, 1)
        for seed in (0, 1, 2**62)
    ]
    assert len(np.unique(np.concatenate(drawn))) == 200 * len(drawn)
