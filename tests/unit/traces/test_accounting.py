"""Accountings of spans: by hand, and against a timeline that is looked at moment by moment."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.reports.traces.accounting import (
    CHECKPOINT,
    ITERATION,
    LOAD_FILE,
    READ_FILE,
    READ_IMAGE,
    Additive,
    additive,
    exclusive,
    intersection,
    length,
    merged_latency,
    overlap,
    sum_of_epochs,
    union,
)
from dlio_bench.reports.traces.bandwidth import cdb_bandwidth, hep_bandwidth
from dlio_bench.reports.traces.timeline import Span


def span(component: str, start: float, end: float, *, epoch: int = 0, rank: int = 0, thread: str = "main") -> Span:
    return Span(epoch, rank, "f", component, start, end, end - start, 1, thread)


MOMENTS = 12
intervals = st.lists(
    st.tuples(st.integers(0, MOMENTS - 1), st.integers(0, MOMENTS - 1)).map(lambda pair: (min(pair), max(pair))),
    max_size=6,
)


def moments(of: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in of for moment in range(start, end)}


@given(intervals, intervals)
def test_unions_are_those_of_their_moments(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    left, right = union(first), union(second)
    assert length(left) == len(moments(first))
    assert length(intersection(left, right)) == len(moments(first) & moments(second))
    assert all(one[1] < other[0] for one, other in pairwise(left))


@pytest.mark.parametrize(
    ("given_intervals", "apart"),
    [
        ([], []),
        ([(1, 2), (2, 3)], [(1, 3)]),  # they touch
        ([(0, 9), (2, 3)], [(0, 9)]),
        ([(2, 2)], [(2, 2)]),
        ([(3, 1), (5, 6)], [(5, 6)]),  # a clock was set back
    ],
)
def test_what_touches_is_one(given_intervals: list[tuple[float, float]], apart: list[tuple[float, float]]) -> None:
    assert union(given_intervals) == apart


def test_the_additive_accounting_by_hand() -> None:
    spans = [
        span(READ_FILE, 0, 2, epoch=-1),  # counts as the first epoch
        span(READ_FILE, 0, 4, rank=1),
        span(LOAD_FILE, 0, 3), span(LOAD_FILE, 0, 5, rank=1),
        span(ITERATION, 0, 20), span(ITERATION, 0, 20, rank=1),
        span(CHECKPOINT, 20, 21), span(CHECKPOINT, 20, 29, rank=1),  # the study's are of the first rank
        span(ITERATION, 0, 10, epoch=7), span(CHECKPOINT, 30, 32, epoch=7),  # of epochs after the fifth
    ]  # fmt: skip
    parts = additive(spans, 2)
    assert parts[0] == Additive(read=3.0, load=1.0, training=15.0, checkpoint=1.0)
    assert parts[7] == Additive(read=0.0, load=0.0, training=-2.0, checkpoint=2.0)
    assert sum_of_epochs(parts.values()).checkpoint == 3.0
    assert parts[0].total == 20.0  # of an iteration a node


def test_the_merged_latency_counts_a_moment_once_however_many_read() -> None:
    spans = [span(READ_IMAGE, 0, 2, rank=rank, epoch=-1) for rank in range(100)] + [
        span(READ_IMAGE, 1, 3, epoch=0),
        span(READ_IMAGE, 2, 4, epoch=1),
        span(ITERATION, 0, 50),
    ]
    assert merged_latency(spans, READ_IMAGE) == {0: 3.0, 1: 2.0}


def test_the_published_bandwidths_come_out_of_the_published_times() -> None:
    """64 nodes, local shuffling: 9,280 calls in 91.21 s, 9.917 GB/s; CDB: 20,672 calls in 1,243.21 s, 0.294 GB/s."""
    assert hep_bandwidth(9280, 91.21) == pytest.approx(9.917e9, rel=2e-3)
    assert cdb_bandwidth(20_672, 1243.21) == pytest.approx(0.294e9, rel=2e-3)
    assert hep_bandwidth(10, 1.0) is None
    assert cdb_bandwidth(0, 0.0) is None


def test_overlap_is_of_each_rank() -> None:
    spans = [
        span(READ_IMAGE, 0, 4), span(ITERATION, 3, 5), span(READ_IMAGE, 0, 2, rank=1), span(ITERATION, 2, 3, rank=1)
    ]  # fmt: skip
    both = overlap(spans, [READ_IMAGE], ITERATION)
    assert (both.first, both.second, both.both) == (3.0, 1.5, 0.5)


@given(intervals)
def test_components_alone_add_up_to_the_time_of_a_thread(of_thread: list[tuple[int, int]]) -> None:
    spans = [span(f"c{number}", *interval) for number, interval in enumerate(of_thread)]
    assert sum(exclusive(spans).get(0, {}).values()) == len(moments(of_thread))


def test_a_span_inside_another_is_taken_out_of_it_in_its_thread_alone() -> None:
    spans = [span("outer", 0, 10), span("inner", 2, 5), span("outer", 0, 10, thread="other")]
    assert exclusive(spans) == {0: {"outer": 17.0, "inner": 3.0}}
