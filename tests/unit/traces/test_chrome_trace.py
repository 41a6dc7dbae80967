"""Traces in the Trace Event Format, of spans made by hand: threads, rows, times, files, counters, what is left out."""

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.reports.traces import chrome
from dlio_bench.reports.traces.chrome import lanes, rates
from dlio_bench.reports.traces.timeline import Clock, Timeline, Track
from tests.timelines import loaded, row
from tests.trace_events import Complete, Counter, Instant, Metadata, Trace, assert_nested, checked

TRACKS = [
    Track(0, "node1", 10, "reader-10"), Track(0, "node1", 10, "reader-2"), Track(0, "node1", 11, "worker"),
    Track(0, "node1", 10, "tensorflow pool"), Track(0, "node1", 10, "trainer"), Track(1, "node2", 20, "trainer"),
]  # fmt: skip
STEPS = [
    row(track, "Training Iteration", 0.1 * step, 0.1 * step + 0.09, epoch=0, step=step)
    for track in (4, 5)
    for step in range(10)
]
LOOPS = [row(4, "Training Loop", 0.0, 1.0), row(5, "Training Loop", -0.001, 1.0)]
READS = [
    row(0, "pread", 0.05, 0.15, epoch=0, step=1, file=0, bytes=1000, offset=4096),
    row(1, "pread", 0.31, 0.35), row(2, "decode", 0.2, 0.4), row(3, "records", 0.5, 0.7), row(3, "records", 0.6, 0.8),
    row(5, "validation", 1.1, 1.2, epoch=~0),
]  # fmt: skip


@pytest.fixture
def spans(tmp_path: Path) -> Timeline:
    return loaded(tmp_path, TRACKS, [*LOOPS, *STEPS, *READS], clocks={"node1": Clock(0, 0), "node2": Clock(0.5, 1e-5)})


def traced(folder: Path, spans: Timeline) -> Trace:
    path = folder / "trace.json"
    chrome.write(path, chrome.of_timeline(spans), chrome.about_timeline(spans))
    return checked(path.read_bytes())


def names(trace: Trace, name: str) -> dict[tuple[int, int], str | int]:
    events = (event for event in trace.traceEvents if isinstance(event, Metadata) and event.name == name)
    return {(event.pid, event.tid): next(iter(event.args.values())) for event in events}


def test_ranks_are_processes_and_threads_threads_in_an_order_that_helps(tmp_path: Path, spans: Timeline) -> None:
    trace = traced(tmp_path, spans)
    assert names(trace, "process_name") == {
        (0, 0): "rank 0 on node1", (1, 0): "rank 1 on node2", (2, 0): "node1: bytes a second",
    }  # fmt: skip
    assert [name for (rank, _), name in sorted(names(trace, "thread_name").items()) if rank == 0] == [
        "trainer", "reader-2", "reader-10", "worker (process 11)", "tensorflow pool", "tensorflow pool, row 2",
    ]  # fmt: skip
    complete = [event for event in trace.traceEvents if isinstance(event, Complete)]
    assert len(complete) == len(spans)
    [read] = [event for event in complete if event.args.get("file")]
    assert (read.name, read.cat) == ("pread", "read")
    assert read.args == {"epoch": 0, "step": 1, "file": "a.h5", "bytes": 1000, "offset": 4096}
    [validation] = [event for event in complete if event.name == "validation"]
    assert validation.args == {"validation after epoch": 0}
    assert read.ts == pytest.approx(51_000)  # the first span began 1 ms before rank 0's loop
    assert read.dur == pytest.approx(100_000)
    assert trace.otherData["clocks"]["node2"] == {"ahead_seconds": 0.5, "within_seconds": 1e-5}
    assert "0.001000 s before rank 0" in trace.otherData["clock"]


def test_a_span_that_ends_before_it_begins_is_an_instant_that_tells_so(tmp_path: Path) -> None:
    spans = loaded(tmp_path, TRACKS, [*LOOPS, row(0, "pread", 0.5, 0.4, bytes=7)])
    trace = traced(tmp_path, spans)
    [event] = [event for event in trace.traceEvents if isinstance(event, Instant)]
    assert event.args["ends before it begins, seconds"] == pytest.approx(-0.1)
    assert spans.damaged


def test_no_spans_at_all_make_a_trace(tmp_path: Path, spans: Timeline) -> None:
    assert traced(tmp_path, chrome.spans_of(spans, 7, [0], None)).traceEvents == []


def test_steps_choose_what_was_under_way_in_them(spans: Timeline) -> None:
    part = chrome.spans_of(spans, 0, [0, 1], range(2, 4))
    assert [spans.components[code].name for code in part.component.tolist()] == ["Training Iteration"] * 4 + [
        "pread", "decode"
    ]  # fmt: skip
    assert set(chrome.spans_of(spans, 0, [1], None).rank.tolist()) == {1}


def test_of_too_many_spans_the_earliest_are_kept(spans: Timeline) -> None:
    part = chrome.earliest_spans(spans, 7)
    assert len(part) == 7
    assert part.start.max() <= np.sort(spans.start)[7]


def test_a_name_in_gz_is_compressed(tmp_path: Path, spans: Timeline) -> None:
    for name in ("trace.json", "trace.json.gz"):
        chrome.write(tmp_path / name, chrome.of_timeline(spans), {})
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == (tmp_path / "trace.json").read_bytes()


def test_a_trace_is_written_as_its_events_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written yet is a block of events at most."""
    monkeypatch.setattr(chrome, "BLOCK", 10)
    made, written = 0, 0

    def events() -> "chrome.Iterator[chrome.Event]":
        nonlocal made
        for made in range(1000):
            assert made - written <= 2 * chrome.BLOCK + 2
            yield {"name": "x"}

    for part in chrome._parts(events(), {}):
        written += part.count(b'"name"')
    assert written == made + 1


def test_rows_hold_spans_that_nest_and_need_one_where_all_do() -> None:
    chance = random.Random(1)
    for _ in range(200):
        starts = np.array([chance.randrange(20) for _ in range(12)], dtype=np.int64)
        ends = starts + np.array([chance.randrange(6) for _ in range(12)])
        rows = lanes(starts, ends, np.zeros(12, bool))
        for number in set(rows.tolist()):
            in_row = rows == number
            assert_nested(list(zip(starts[in_row].tolist(), ends[in_row].tolist(), strict=True)))
    nested = np.array([0, 1, 1, 4, 9]), np.array([10, 8, 4, 8, 10])
    assert set(lanes(*nested, np.zeros(5, bool)).tolist()) == {0}
    assert lanes(np.array([0, 2]), np.array([3, 5]), np.zeros(2, bool)).tolist() == [0, 1]


def test_bytes_a_second_add_up_to_the_bytes(tmp_path: Path) -> None:
    reads = [row(0, "pread", 0.0, 1.0, bytes=100), row(1, "pread", 0.5, 1.5, bytes=300), row(1, "pread", 2, 2, bytes=9)]
    spans = loaded(tmp_path, TRACKS, reads)
    assert rates(spans.part(np.arange(2)), np.array([0.0, 0.5, 1.0, 1.5, 2.0])).tolist() == pytest.approx(
        [100, 400, 300, 0]
    )
    edges = np.linspace(0, 2.1, 12)
    assert (rates(spans, edges) * np.diff(edges)).sum() == pytest.approx(409)
    values = [event.args["B/s"] for event in traced(tmp_path, spans).traceEvents if isinstance(event, Counter)]
    assert max(values[:-2]) == 400
    assert values[-1] == 0
