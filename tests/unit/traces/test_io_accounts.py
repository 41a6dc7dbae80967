"""What reading took by each accounting, and at which bandwidth: by hand."""

import pytest

from dlio_bench.reports.traces.accounting import (
    ADDITIVE,
    ITERATION,
    LOAD_FILE,
    MERGED,
    NEXT_BATCH,
    READ_FILE,
    READ_IMAGE,
    accounts,
    reading,
    waiting,
)
from dlio_bench.reports.traces.bandwidth import (
    HEP_TRAIN_BYTES,
    HEP_VALID_BYTES,
    Sizes,
    bandwidth,
    times_ideal_bandwidth,
    times_ideal_seconds,
)
from dlio_bench.reports.traces.timeline import Span


def span(component: str, start: float, end: float, *, epoch: int = 0, rank: int = 0, thread: str = "main") -> Span:
    return Span(epoch, rank, "f", component, start, end, end - start, 1, thread)


SIZES = Sizes(train_files=2, train_bytes=100, validation_bytes=10, sample_bytes=50, tiny=True)
HEP = [
    span(ITERATION, 0, 10), span(LOAD_FILE, 1, 5), span(READ_FILE, 1, 4),
    span(ITERATION, 0, 10, rank=1), span(LOAD_FILE, 0, 3, rank=1), span(READ_FILE, 0, 2, rank=1),
    span(ITERATION, 10, 18, epoch=1), span(LOAD_FILE, 10, 12, epoch=1), span(READ_FILE, 10, 11, epoch=1),
]  # fmt: skip
CDB = [
    span(ITERATION, 0, 10), span(READ_IMAGE, 0, 4, thread="a"), span(READ_IMAGE, 2, 6, thread="b"),
    span(READ_IMAGE, 3, 7, rank=1), span(ITERATION, 8, 12, rank=1), span(READ_IMAGE, 12, 13, epoch=1),
]  # fmt: skip


def test_reading_is_what_the_study_calls_it_else_what_reads() -> None:
    assert reading("hepcnnb", {ITERATION, READ_FILE, "pread"}) == [READ_FILE]
    assert reading("cdb", {READ_IMAGE, "pread"}) == [READ_IMAGE]
    assert reading("cdb", {"pread", "library read", "tier read", "check"}) == ["library read", "pread"]
    assert reading("imagenet", {READ_FILE}) == [READ_FILE]
    assert reading("cdb", {ITERATION}) == []
    assert reading("cdb", {"pread", "records"}) == []


def test_the_additive_account_by_epoch() -> None:
    """Two nodes: of epoch 1, read (3 + 2) / 2, load (7 - 5) / 2, training (20 - 7) / 2."""
    [account] = accounts(HEP, 2, [READ_FILE])
    assert account.how == ADDITIVE
    assert account.epochs[0] == {"read": 2.5, "load": 1, "training": 6.5, "checkpoint": 0}
    assert account.epochs[1] == {"read": 0.5, "load": 0.5, "training": 3, "checkpoint": 0}
    assert account.totals == {"read": 3, "load": 1.5, "training": 9.5, "checkpoint": 0}
    assert account.share == pytest.approx(3 / 14)
    assert account.shares == {0: 0.25, 1: 0.125}


def test_the_merged_account_by_epoch() -> None:
    [account] = accounts(CDB, 2, [READ_IMAGE])
    assert account.how == MERGED
    assert account.epochs == {0: {"read": 7, "training": 12}, 1: {"read": 1, "training": 0}}
    assert account.share == pytest.approx(8 / 20)
    assert account.counted_twice == 20 - 13  # 13 s elapsed
    assert accounts(CDB, 2, []) == []


def test_all_epochs_of_a_result_count() -> None:
    """The study's script leaves out epochs after the fifth; a log of its runs has no more."""
    spans = [span(of, at, at + 2, epoch=at) for at in range(7) for of in (READ_FILE, LOAD_FILE)]
    spans += [span(ITERATION, at, at + 4, epoch=at) for at in range(7)]
    [account] = accounts(spans, 1, [READ_FILE])
    assert account.shares == dict.fromkeys(range(7), 0.5)
    rates = bandwidth(spans, 1, [READ_FILE], read_bytes=250, counted=0, sizes=SIZES)
    assert (rates.calls, rates.rule) == (7, (2 * 100 + 5 * 10) / 14)


def test_true_bandwidth_counts_a_moment_of_two_epochs_once() -> None:
    spans = [span(READ_IMAGE, 0, 4), span(READ_IMAGE, 2, 6, rank=1, epoch=1)]
    rates = bandwidth(spans, 1, [READ_IMAGE], read_bytes=60, counted=0, sizes=SIZES)
    assert rates.by_merged_seconds == 60 / 6
    assert rates.rule == 2 * 50 / (4 + 4)  # the study adds up over epochs


def test_waiting_is_a_share_of_the_steps() -> None:
    spans = [
        span(ITERATION, 0, 4), span(NEXT_BATCH, 0, 3), span(ITERATION, 0, 4, rank=1), span(NEXT_BATCH, 0, 1, rank=1),
        span(ITERATION, 4, 8, epoch=1), span(ITERATION, 4, 8, epoch=1, rank=1),
    ]  # fmt: skip
    account = waiting(spans)
    assert account.epochs == {0: {"waiting": 2, "rest": 2}, 1: {"waiting": 0, "rest": 4}}
    assert account.shares == {0: 0.5, 1: 0}
    assert account.share == 0.25


def test_true_bandwidth_beside_the_rule_of_hepcnnb() -> None:
    """Three calls: two training files are charged, the third as one of validation, over (5 + 1) / 2 s a node."""
    rates = bandwidth(HEP, 2, [READ_FILE], read_bytes=300, counted=99, sizes=SIZES)
    assert rates.calls == 3
    assert rates.node_seconds == 3
    assert rates.by_node_seconds == 100
    assert rates.merged_seconds == 4 + 1
    assert rates.by_merged_seconds == 60
    assert rates.rule == (2 * 100 + 10) / 3
    assert rates.formula is None


def test_the_published_formula_needs_the_published_files() -> None:
    calls = [span(READ_FILE, at, at + 1) for at in range(1025)]
    published = Sizes(1024, 426_926_240, 56_607_048, 602_144, tiny=False)
    rates = bandwidth(calls, 1, [READ_FILE], read_bytes=1, counted=0, sizes=published)
    assert rates.formula == pytest.approx((1024 * HEP_TRAIN_BYTES + HEP_VALID_BYTES) / 1025)
    tiny = Sizes(1024, 1000, 100, 10, tiny=True)
    assert bandwidth(calls, 1, [READ_FILE], read_bytes=1, counted=0, sizes=tiny).formula is None
    alone = Sizes(1024, 1000, None, 10, tiny=True)
    assert bandwidth(calls, 1, [READ_FILE], read_bytes=1, counted=0, sizes=alone).rule is None


def test_true_bandwidth_beside_the_rule_of_cdb() -> None:
    """Reads that overlap in a thread count once for a node; calls are charged with a sample's delivered bytes."""
    rates = bandwidth(CDB, 2, [READ_IMAGE], read_bytes=800, counted=0, sizes=SIZES)
    assert rates.node_seconds == (4 + 4 + 4 + 1) / 2
    assert rates.by_merged_seconds == 800 / 8
    assert rates.rule == 4 * 50 / 8
    assert rates.formula is None
    sizes = Sizes(24, 60_171_786, None, 17_694_720, tiny=False)
    assert bandwidth(CDB, 2, [READ_IMAGE], 800, 0, sizes).formula == 4 * 17_694_752 / 8


def test_without_spans_of_reading_the_counted_seconds_are_taken() -> None:
    rates = bandwidth([span(ITERATION, 0, 1)], 4, [], read_bytes=100, counted=8, sizes=SIZES)
    assert rates.by_node_seconds == 50
    assert (rates.calls, rates.by_merged_seconds, rates.rule) == (None, None, None)


def test_multiples_of_the_ideal() -> None:
    assert times_ideal_seconds([8, 4, None, 3], [1, 2, 4, 8]) == [1, 1, None, 3]
    assert times_ideal_bandwidth([10, 30, None, 40], [2, 4, 6, 8]) == [1, 1.5, None, 1]
    assert times_ideal_seconds([0, 1], [1, 2]) == [None, None]
