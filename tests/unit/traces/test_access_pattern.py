"""How files were accessed: by hand, against a plain loop, and what the text says of it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.reports.traces.access_pattern import (
    BINS,
    CLOSE,
    OPEN,
    READ,
    STAT,
    WRITE,
    Accesses,
    Direction,
    document,
    is_metadata_intensive,
    metadata_share,
    opens_per_read,
    pattern,
    render,
    traffic,
    variation,
)

Row = tuple[int, int, int, int, int, float, float]  # rank, file, kind, offset, size, start, end


def accesses(rows: list[Row]) -> Accesses:
    types = (*(np.int64,) * 5, *(np.float64,) * 2)
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return Accesses(*(np.array(column, dtype=kind) for column, kind in zip(columns, types, strict=True)))


def reads(*pieces: tuple[int, int]) -> list[Row]:
    """Of rank 0 and file 0, one after the other, a tenth of a second each: (offset, size)."""
    return [(0, 0, READ, offset, size, float(at), at + 0.1) for at, (offset, size) in enumerate(pieces)]


def test_consecutive_sequential_random_and_first() -> None:
    told = pattern(accesses(reads((0, 10), (10, 5), (15, 5), (100, 5), (50, 5), (50, 5), (55, 1)))).reads
    assert (told.first, told.consecutive, told.sequential, told.random) == (1, 3, 4, 2)
    assert (told.count, told.placed, told.bytes) == (7, 7, 36)
    assert told.seconds == pytest.approx(0.7)


def test_order_is_that_of_each_rank_and_file() -> None:
    rows: list[Row] = [
        (0, 0, READ, 0, 10, 0.0, 0.1),
        (1, 0, READ, 0, 10, 0.2, 0.3),  # another rank
        (0, 1, READ, 0, 10, 0.4, 0.5),  # another file
        (0, 0, WRITE, 500, 10, 0.6, 0.7),  # reads and writes do not part each other
        (0, 0, READ, 10, 10, 0.8, 0.9),
    ]
    for order in (rows, rows[::-1]):
        told = pattern(accesses(order))
        assert (told.reads.first, told.reads.consecutive, told.reads.random) == (3, 1, 0)
        assert (told.writes.sequential, told.writes.consecutive) == (1, 0)
        assert (told.ranks, told.files) == (2, 2)


def test_an_open_begins_anew() -> None:
    rows = [*reads((0, 10), (10, 10)), (0, 0, OPEN, -1, 0, 0.5, 0.6)]
    told = pattern(accesses(rows)).reads
    assert (told.first, told.consecutive, told.sequential) == (1, 0, 1)  # far from the start, as Darshan counts it


def test_sizes_have_the_bins_of_darshan() -> None:
    edges = [0, 100, 101, 1024, 1025, 10240, 102400, 2**20, 2**20 + 1, 4 * 2**20, 10 * 2**20, 100 * 2**20, 2**30]
    told = pattern(accesses(reads(*((0, size) for size in [*edges, 2**30 + 1]))))
    assert dict(zip(BINS, told.reads.sizes, strict=True)) == {
        "0-100": 2, "100-1K": 2, "1K-10K": 2, "10K-100K": 1, "100K-1M": 1, "1M-4M": 2, "4M-10M": 1, "10M-100M": 1,
        "100M-1G": 1, "1G+": 1,
    }  # fmt: skip


def test_metadata_and_its_share() -> None:
    rows: list[Row] = [
        (0, 0, OPEN, -1, 0, 0.0, 0.2),
        (0, 0, STAT, -1, 0, 0.2, 0.3),
        (0, 0, READ, 0, 10, 0.3, 0.7),
        (0, 0, READ, 10, 10, 0.7, 0.9),
        (0, 0, CLOSE, -1, 0, 0.9, 1.5),
    ]
    told = pattern(accesses(rows))
    assert (told.opens, told.metadata) == (1, 3)
    assert told.metadata_seconds == pytest.approx(0.9)
    assert metadata_share(told) == pytest.approx(0.6)
    assert opens_per_read(told) == 0.5
    assert is_metadata_intensive(told)
    assert not is_metadata_intensive(pattern(accesses(rows[2:])))


@pytest.mark.parametrize(
    ("read", "written", "name"),
    [(0, 0, "no data seen"), (55, 45, "balanced"), (56, 44, "read-intensive"), (44, 56, "write-intensive")],
)
def test_reads_and_writes_are_balanced_within_a_tenth_of_all_bytes(read: int, written: int, name: str) -> None:
    assert traffic(read, written) == name


def test_ranks_that_did_nothing_count_in_the_variation() -> None:
    rows = reads((0, 30))
    assert pattern(accesses(rows)).bytes_variation == 0
    assert pattern(accesses(rows), ranks=2).bytes_variation == pytest.approx(1.0)
    assert pattern(accesses([*rows, (1, 0, READ, 0, 10, 0.0, 0.1)])).bytes_variation == pytest.approx(0.5)
    assert pattern(accesses(reads((0, 0))), ranks=2).bytes_variation is None
    assert variation(np.array([7]), np.array([3.0]), 2**40) == pytest.approx(2**20, rel=1e-6)  # takes no memory a rank


def test_nothing_and_offsets_that_nobody_knows() -> None:
    nothing = pattern(accesses([]))
    assert nothing.reads == Direction()
    assert nothing.ranks == nothing.files == 0
    assert metadata_share(nothing) is opens_per_read(nothing) is None
    assert "no data seen" in render(nothing)
    [hidden] = [pattern(accesses(reads((-1, 10), (-1, 10)))).reads]
    assert (hidden.count, hidden.bytes, hidden.placed, hidden.random) == (2, 20, 0, 0)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 2), st.integers(0, 5), st.integers(-1, 6), st.sampled_from([0, 1, 2, 3, 200]),
        st.integers(0, 20), st.integers(0, 3),
    )
)  # fmt: skip


@given(ROWS)
def test_a_plain_loop_counts_the_same(drawn: list[tuple[int, ...]]) -> None:
    rows: list[Row] = [(*row[:5], float(row[5]), float(row[5] + row[6])) for row in drawn]  # type: ignore[misc]
    told = pattern(accesses(rows))
    last: dict[Any, int] = {}
    seen: dict[str, list[int]] = {"reads": [0] * 5, "writes": [0] * 5}
    for rank, file, kind, offset, size, _, _ in sorted(rows, key=lambda row: row[5]):
        if kind == OPEN:
            last = {key: value for key, value in last.items() if key[:2] != (rank, file)}
        if kind not in (READ, WRITE):
            continue
        counts, key = seen["reads" if kind == READ else "writes"], (rank, file, kind)
        counts[0] += 1
        if offset >= 0:
            before, is_first = last.get(key, 0), key not in last
            counts[1] += offset == before + 1
            counts[2] += offset > before
            counts[3] += is_first and offset <= before
            counts[4] += not is_first and offset <= before
            last[key] = offset + size - 1
    for name, direction in (("reads", told.reads), ("writes", told.writes)):
        shown = [direction.count, direction.consecutive, direction.sequential, direction.first, direction.random]
        assert shown == seen[name]
        assert sum(direction.sizes) == direction.placed


def test_the_answer_comes_first() -> None:
    lines = render(pattern(accesses(reads(*((10 * at, 10) for at in range(5)))))).splitlines()
    assert lines[0] == "I/O pattern: read-intensive, not metadata-intensive"
    assert lines[1] == "  reads: 0-100 bytes most often (100 % of 5); 80 % consecutive"
    assert "thresholds of dlio-bench" in " ".join(lines)
    assert "of Drishti" in " ".join(lines)
    assert max(map(len, lines)) <= 80
    assert not any("writes" in line or line.endswith(" -") for line in lines)  # there are none


def test_the_document_says_the_same_as_the_text() -> None:
    told = document(pattern(accesses(reads((0, 10), (10, 10), (5, 1)))))
    assert told["traffic"] == "read-intensive"
    assert told["metadata_intensive"] is False
    assert told["reads"]["random"] == 1
    assert told["reads"]["sizes"]["0-100"] == 3
    assert told["limits"]["metadata_share"]["source"] == "dlio-bench"
