"""What stalls were waiting for: hand-made intervals, and any intervals against a timeline moment by moment."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.reports.traces.tensorflow import NOTHING, Operation, shares, total

READ, DECODE, PYTHON, WAITS = (
    ("tf:ReadFile", "read"),
    ("tf:DecodeJpeg", "decode"),
    ("tf:PyFunc", "other"),
    ("w", "wait"),
)


def operation(thread: int, what: tuple[str, str], start: float, end: float) -> Operation:
    return Operation(thread, *what, start, end)


def test_a_moment_goes_in_equal_parts_to_the_threads_that_work() -> None:
    reading = [operation(1, READ, 0, 4), operation(2, READ, 1, 3), operation(3, DECODE, 2, 8)]
    [first, second] = shares([(0, 5), (9, 10)], reading)
    assert first == pytest.approx({"tf:ReadFile": 1 + 1 + 2 / 3 + 1 / 2, "tf:DecodeJpeg": 1 / 3 + 1 / 2 + 1})
    assert second == {NOTHING: 1}
    assert total([first, second]) == pytest.approx({**first, NOTHING: 1})
    assert list(total([{"a": 1.0}, {"b": 3.0, "a": 1.0}])) == ["b", "a"]


def test_a_thread_is_at_what_it_began_last() -> None:
    nested = [operation(1, ("tf:dataset stage", "other"), 0, 10), operation(1, READ, 2, 5)]
    assert shares([(0, 10)], nested) == [{"tf:dataset stage": 7, "tf:ReadFile": 3}]
    # an operation inside that only waits hides the work around it
    assert shares([(0, 4)], [operation(1, READ, 0, 4), operation(1, WAITS, 1, 4)]) == [{"tf:ReadFile": 1, NOTHING: 3}]


def test_who_waits_takes_no_part_and_a_python_function_only_where_nothing_is_known_of_it() -> None:
    calls = [operation(1, WAITS, 0, 9), operation(2, PYTHON, 0, 6), operation(3, ("pread", "read"), 1, 2)]
    assert shares([(0, 8)], calls) == [{"tf:PyFunc": 5, "pread": 1, NOTHING: 2}]


def test_nothing_is_shared_out_of_no_stall_or_of_an_empty_one() -> None:
    assert shares([], [operation(1, READ, 0, 4)]) == []
    assert shares([(1, 1)], [operation(1, READ, 0, 4), operation(1, READ, 3, 3)]) == [{}]


KINDS = st.sampled_from([READ, DECODE, PYTHON, WAITS])
TIMES = st.integers(0, 24)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), KINDS, TIMES, TIMES), max_size=12, unique_by=lambda row: (row[0], row[2])
    ),
    cuts=st.lists(TIMES, unique=True, max_size=8).map(sorted),
)
def test_any_operations_are_shared_out_as_moment_by_moment(
    rows: list[tuple[int, tuple[str, str], int, int]], cuts: list[int]
) -> None:
    operations = [operation(*row) for row in rows]
    stalls = list(zip(cuts[::2], cuts[1::2], strict=False))
    shared_out = shares(stalls, operations)
    assert len(shared_out) == len(stalls)
    for (start, end), of_stall in zip(stalls, shared_out, strict=True):
        expected: Counter[str] = Counter()
        for moment in range(start, end):
            latest: dict[int, Operation] = {}
            for row in sorted(operations, key=lambda row: row.start):
                if row.start <= moment < row.end:
                    latest[row.thread] = row
            working = [row.component for row in latest.values() if row.kind != "wait"]
            working = [name for name in working if name != PYTHON[0]] or working or [NOTHING]
            for name in working:
                expected[name] += 1 / len(working)
        assert of_stall == pytest.approx(expected)
        assert sum(of_stall.values()) == pytest.approx(end - start)
