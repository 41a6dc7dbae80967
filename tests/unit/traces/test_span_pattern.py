"""How a run accessed files, from spans made by hand: copies of a node, libraries, what has no file, other trials."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.components import BY_NAME, COMPONENTS, Component
from dlio_bench.reports.study.rows import PATTERN, of_result
from dlio_bench.reports.traces import span_pattern
from dlio_bench.reports.traces.access_pattern import document, render
from dlio_bench.reports.traces.timeline import COLUMNS, Timeline, Track

STAGER, READER, OTHER_RANK = range(3)
KNOWN = [*COMPONENTS, Component("tf:ReadFile", "read", "an operation of TensorFlow's")]
CODES = {component.name: code for code, component in enumerate(KNOWN)}


def timeline(*rows: tuple[int, str, int, int, int], lost: dict[int, int] | None = None, trial: int = 0) -> Timeline:
    """Spans of (track, component, file, offset, bytes), a second each, one after the other."""
    columns: dict[str, Any] = {name: np.zeros(len(rows), dtype=np.int64) for name in COLUMNS}
    columns["trial"] += trial
    for name, values in zip(("track", "component", "file", "offset", "bytes"), zip(*rows, strict=True), strict=True):
        columns[name] = np.array([CODES[value] if name == "component" else value for value in values])
    columns["start"] = np.arange(len(rows), dtype=np.float64)
    columns["end"] = columns["start"] + 1
    tracks = [Track(0, "node", 1, "stager"), Track(0, "node", 1, "reader-0"), Track(1, "node", 2, "reader-0")]
    return Timeline(
        **columns, ranks=2, tracks=tracks, components=KNOWN, files={0: "a", 1: "b"}, clocks={}, lost=lost or {}
    )  # fmt: skip


def test_reads_and_opens_of_copies_are_the_node_s() -> None:
    told, node = span_pattern.patterns_of(
        timeline(
            (STAGER, "open", 0, -1, 0),
            (STAGER, "stage read", 0, 0, 100),
            (STAGER, "stage write", 0, 0, 100),
            (READER, "open", 0, -1, 0),
            (READER, "copy read", 0, 50, 10),
            (READER, "close", 0, -1, 0),
            (OTHER_RANK, "open", 0, -1, 0),
            (OTHER_RANK, "pread", 0, 0, 20),
            (READER, "tier read", -1, -1, 30),
        ),
        0,
    )
    assert (told.reads.count, told.reads.bytes, told.writes.count, told.opens, told.files) == (2, 120, 0, 2, 1)
    assert told.bytes_variation == pytest.approx(40 / 60)  # 100 and 20
    assert node is not None
    assert (node.reads.count, node.reads.placed, node.reads.bytes) == (2, 1, 40)
    assert (node.writes.bytes, node.opens, node.metadata) == (100, 1, 2)


def test_an_open_inside_a_read_of_its_thread_counts_once() -> None:
    spans = timeline(
        (READER, "HDF5 File Read", 0, -1, 1000),
        (READER, "open", 0, -1, 0),
        (OTHER_RANK, "open", 0, -1, 0),
        (READER, "open", 1, -1, 0),
        (READER, "pread", 1, 0, 10),
    )
    spans.start[:], spans.end[:] = [0, 1, 2, 11, 12], [10, 4, 3, 12, 14]
    told, _ = span_pattern.patterns_of(spans, 0)
    assert (told.reads.seconds, told.metadata_seconds) == (7 + 2, 3 + 1 + 1)


def test_what_a_library_reads_has_bytes_but_no_sizes() -> None:
    told, node = span_pattern.patterns_of(
        timeline(
            (READER, "library read", 0, -1, 1000),
            (READER, "records", -1, -1, 500),
            (READER, "Time to Read Single Image", -1, -1, 1000),  # came from the one before
            (READER, "tf:ReadFile", 0, -1, 500),  # lies within the records
            (READER, "remote read", -1, -1, 9),
        ),
        0,
    )
    assert node is None
    assert (told.reads.count, told.reads.bytes, told.reads.placed, sum(told.reads.sizes)) == (2, 1500, 0, 0)
    assert "2 reads of 1.5 kB are a library's" in render(told)
    assert "reads: 2, whose sizes and offsets are not known" in render(told)
    assert told.reads.seconds == 1  # how long TensorFlow read is not known
    assert "TensorFlow's own reads" in render(told)
    assert document(told)["opens_per_read"] is document(told)["metadata_intensive"] is None


def test_other_trials_are_left_out_and_lost_spans_are_told() -> None:
    spans = timeline((READER, "pread", 0, 0, 10), lost={1: 5}, trial=2)
    told, _ = span_pattern.patterns_of(spans, 2)
    assert told.reads.count == 1
    assert "5 spans found no room" in render(told)
    unseen, _ = span_pattern.patterns_of(spans, 0)
    assert render(unseen).splitlines()[0] == "I/O pattern: no data seen"
    assert "No read of this trial left a span" in render(unseen)
    assert "consecutive" not in render(unseen)


def test_every_component_that_reads_or_writes_files_is_thought_of() -> None:
    """A new component of these kinds needs a place: of the dataset, of the node, or neither."""
    kinds = {name for name, component in BY_NAME.items() if component.kind in ("read", "write")}
    assert kinds - {*span_pattern.NODE_READS, *span_pattern.NODE_WRITES, *span_pattern.CHECKPOINTS} == {
        "pread", "stage read", "library read", "HDF5 File Read", "image file read",
    }  # fmt: skip


def test_studies_compare_the_pattern_of_each_timed_trial(made: Callable[..., Any]) -> None:
    result, steps = made()
    result = replace(result, trials=[trial for trial in result.trials if not trial.warmup][:1])
    spans = timeline(
        (READER, "open", 0, -1, 0),
        (READER, "pread", 0, 0, 100),
        (READER, "pread", 0, 100, 2 << 20),
        (OTHER_RANK, "pread", 1, 0, 100),
        (READER, "pread", 0, 0, 100),
        (READER, "checkpoint write", -1, -1, 300 + (2 << 20)),
        trial=result.measured_trials[0].trial,
    )
    figures = of_result(result, steps, "", spans).figures
    assert {name: figures[name].tolist() for name in ("small_share", "consecutive_share", "opens_per_read")} == {
        "small_share": [0.75], "consecutive_share": [0.25], "opens_per_read": [0.25],
    }  # fmt: skip
    assert (figures["written_share"].tolist(), figures["metadata_share"].tolist()) == ([0.5], [0.2])
    assert figures["seconds_variation"].tolist() == pytest.approx([3 / 5])  # 4 and 1 s
    unread = of_result(result, steps, "", timeline((READER, "open", 0, -1, 0), trial=9)).figures
    assert not set(unread) & set(PATTERN)
