"""Spans as TimeLogger's records: the study's script finds them, and read back they give the same accountings."""

import re
from pathlib import Path

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports.traces import accounting, log_account, timeline, timelogger
from dlio_bench.reports.traces.timeline import Span, Track
from dlio_bench.reports.traces.timelogger import published_spans, timelogger_spans, with_passes
from tests.timelines import loaded, row

# write_time_logger_messages.py of the study's repository
OF_THE_STUDY = re.compile(r"TIME LOGGER OUTPUT.*For Excel:[^']+")
TRACKS = [
    Track(0, "node1", 10, "trainer"), Track(0, "node1", 11, "worker 'a'"), Track(1, "node2", 20, "trainer"),
    Track(1, "node2", 20, "reader-0"),
]  # fmt: skip
ROWS = [
    row(0, "Training Loop", -1e-7, 9.0), row(2, "Training Loop", 0.001, 9.0),
    *(
        row(track, "Training Iteration", 1.0 * step, 1.0 * step + 0.9, epoch=step // 4, step=step)
        for track in (0, 2) for step in range(8)
    ),
    *(row(track, "Load File", 4 * at + 0.1, 4 * at + 0.6, epoch=at) for track in (0, 2) for at in (0, 1)),
    *(row(track, "HDF5 File Read", 4 * at + 0.2, 4 * at + 0.5, epoch=at) for track in (0, 2) for at in (0, 1)),
    *(row(1, "Time to Read Single Image", 1 / 3 * step, 1 / 3 * step + 0.25, epoch=step // 4) for step in range(8)),
    row(3, "Time to Read Single Image", 0.1, 0.7), row(0, "Checkpoint Listener", 8.0, 8.5, epoch=1),
    row(3, "pread", 0.1, 0.2, epoch=0, bytes=10), row(0, "compute", 0.7, 0.9, epoch=0, step=0),
    row(0, "Training Iteration", 0.0, 1.0, trial=1),
]  # fmt: skip


def figures(spans: list[Span]) -> list[object]:
    """All that accountings make of spans."""
    names = ("Time to Read Single Image", "Training Iteration")
    merged = [accounting.merged_latency(spans, name) for name in names]
    return [
        accounting.additive(spans, 2),
        *merged,
        accounting.overlap(spans, names[:1], names[1]),
        accounting.exclusive(spans),
    ]


def test_records_give_the_same_accountings_when_they_are_read(tmp_path: Path) -> None:
    spans = list(timelogger_spans(published_spans(loaded(tmp_path, TRACKS, ROWS), 0), 0))
    assert {span.component for span in spans} == {
        "Training Loop", "Training Iteration", "Load File", "HDF5 File Read", "Time to Read Single Image",
        "Checkpoint Listener",
    }  # fmt: skip
    lines = [timelogger.record(span) for span in spans]
    log = timelogger.parse("\n".join(lines), "log")
    assert not log.problems
    assert log.spans == spans
    assert figures(list(log.spans)) == figures(spans)
    assert accounting.additive(log.spans, 2)[0].read == pytest.approx(0.3)
    for line, span in zip(lines, spans, strict=True):
        [found] = OF_THE_STUDY.findall(line)
        values = found.rpartition("For Excel:")[2].split(", ")
        assert values[:4] == [str(span.epoch), str(span.rank), "run", span.component]
        assert values[7:] == [str(span.process), span.thread]
    assert {(span.process, span.thread) for span in spans if span.rank == 0} == {
        (10, "<_MainThread(MainThread)>"), (11, "<Thread(worker  a )>"),
    }  # fmt: skip


def test_reads_of_our_readers_are_in_the_log_where_the_study_s_are_not(tmp_path: Path) -> None:
    """Reads ahead of epoch 1 in epoch 0: 4 + 2 s of reading and 8 s of training elapse in 8 s."""
    rows = [
        *(row(0, "Training Iteration", 4.0 * at, 4.0 * at + 4, epoch=at, step=at) for at in (0, 1)),
        row(3, "pread", 0.0, 3.0, epoch=0, bytes=1), row(3, "library read", 2.0, 4.0, epoch=0, bytes=1),
        row(3, "pread", 3.0, 5.0, epoch=1, bytes=1), row(3, "tier read", 5.0, 6.0, epoch=1, bytes=1),
        row(3, "open", 6.0, 7.0, epoch=1),
    ]  # fmt: skip
    recorded = loaded(tmp_path, TRACKS, rows)
    log = timelogger.parse(
        "".join(timelogger.record(span) for span in timelogger_spans(published_spans(recorded, 0), 0)), "log"
    )
    assert {(span.component, span.thread) for span in log.spans if span.rank == 1} == {
        (name, "<Thread(reader-0)>") for name in ("pread", "library read", "tier read")
    }
    readers = accounting.reading("cdb", {span.component for span in log.spans})
    [expected], [told] = (
        accounting.accounts(list(spans), 1, readers) for spans in (timeline.spans(recorded, 0), log.spans)
    )
    assert told == expected
    assert told.totals == {"read": 4 + 2, "training": 8}
    account = log_account.account(log, 1)
    assert (account.cdb_read, account.cdb_training, account.cdb_counted_twice) == ({0: 4, 1: 2}, {0: 4, 1: 4}, 6)
    assert "6 s are counted twice" in log_account.render(account)


def test_the_log_is_one_that_trace_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spans = published_spans(loaded(tmp_path, TRACKS, ROWS), 0)
    log = tmp_path / "log.txt"
    log.write_text("".join(f"{timelogger.record(span)}\n" for span in timelogger_spans(spans, 0)))
    assert main(["trace", str(log)]) == 0
    assert f"{len(spans)} spans of 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize("read", ["HDF5 File Read", "Time to Read Single Image"])
def test_accountings_of_a_result_survive_its_log(tmp_path: Path, read: str) -> None:
    """A rank of two epochs with passes behind steps 1 and 3; another whose steps were lost. Training is the loop."""
    rows = [
        row(0, "Training Iteration", 0.0, 1.0, epoch=0, step=0),
        row(0, "Training Iteration", 1.0, 2.0, epoch=0, step=1), row(0, "validation", 2.5, 5.0, epoch=~0),
        row(0, "Load File", 2.5, 4.0, epoch=~0), row(0, read, 2.5, 3.5, epoch=~0),
        row(0, "Training Iteration", 5.0, 6.0, epoch=1, step=2), row(0, "validation", 6.0, 9.0, epoch=~1),
        row(0, "Load File", 5.0, 5.5, epoch=1), row(0, read, 5.0, 5.5, epoch=1),
        row(2, "validation", 3.0, 5.0, epoch=~0), row(2, "Training Loop", 0.0, 5.0),
    ]  # fmt: skip
    recorded = loaded(tmp_path, TRACKS, rows)
    of_result = list(timeline.spans(with_passes(recorded), 0))
    lines = (timelogger.record(span) for span in timelogger_spans(published_spans(recorded, 0), 0))
    log = timelogger.parse("\n".join(lines), "log")
    [expected], [told] = (accounting.accounts(list(spans), 1, [read]) for spans in (of_result, log.spans))
    assert told == expected
    assert sum(told.totals.values()) == ((1 + 4 + 2) + 4 if read == "HDF5 File Read" else (5 + 4) + (1 + 0.5))
    account = log_account.account(log, 1)
    shown = account.hep if read == "HDF5 File Read" else account.cdb_training
    assert shown is not None
    assert shown.keys() == expected.epochs.keys()
