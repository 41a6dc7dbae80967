"""Logs of TimeLogger as Python 2 wrote them, and the command that reads them."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.cli import main
from dlio_bench.reports.traces.timeline import Span
from dlio_bench.reports.traces.timelogger import HEADER, parse, record

THREAD = "<_MainThread(MainThread, started 46912496346240)>"


def python2(epoch: int, rank: int, component: str, start: float, end: float) -> str:
    """A record as the study's program printed it: 12 digits of a time."""
    return (
        f"('TIME LOGGER OUTPUT', 'Epoch: {epoch}', 'Rank: {rank}', 'train', '{component}', 'Start Time: {start:g}', "
        f"'End Time: {end:g}', 'Time Taken: {end - start:g}', 'For Excel:{epoch}, {rank}, train, {component}, "
        f"{start:.12g}, {end:.12g}, {end - start:.12g}, 4711, {THREAD}')"
    )


STEP = python2(0, 3, "Training Iteration", 1532112345.671, 1532112346.123)
LATER = python2(-1, 3, "HDF5 File Read", 1532112347.0, 1532112347.5)


def test_a_record_has_the_digits_that_python_2_wrote() -> None:
    [span] = parse(STEP, "log").spans
    assert (span.epoch, span.rank, span.action, span.component) == (0, 3, "train", "Training Iteration")
    assert (span.start, span.end) == (1532112345.67, 1532112346.12)
    assert span.seconds == pytest.approx(0.452, abs=1e-6)
    assert (span.process, span.thread) == (4711, THREAD)


@pytest.mark.parametrize(
    "text",
    [
        f"{STEP}\n{LATER}\n",
        f"step 1 loss 0.3 {STEP}{LATER}",  # in the middle of a line, and two on one
        f"{STEP[1:-1]}{LATER[1:-1]}",  # a file of its own: no brackets, no line ends
    ],
)
def test_no_record_of_a_line_is_missed(text: str) -> None:
    log = parse(text, "log")
    assert [span.component for span in log.spans] == ["Training Iteration", "HDF5 File Read"]
    assert not log.problems


def test_a_record_that_is_cut_off_is_named() -> None:
    log = parse(f"{STEP[:150]}\n{LATER}\n{STEP[:40]}", "log-7")
    assert [span.component for span in log.spans] == ["HDF5 File Read"]
    assert [problem.split(",")[0] for problem in log.problems] == ["log-7: record 1", "log-7: record 3"]


def test_a_clock_that_was_set_back_is_named_and_the_record_kept() -> None:
    log = parse(python2(0, 1, "Load File", 1532112346.0, 1532112345.0), "log")
    assert len(log.spans) == 1
    assert "set back" in log.problems[0]


@given(
    st.builds(
        Span, st.integers(-1, 9), st.integers(-1, 9), st.sampled_from(["f", "it's"]),
        st.sampled_from(["Load File", 'a "b"', "c, d", ""]), st.floats(0, 2e9), st.floats(0, 2e9), st.floats(0, 9e4),
        st.integers(1, 9), st.just(THREAD),
    )
)  # fmt: skip
def test_what_is_written_is_read(span: Span) -> None:
    [read] = parse(f"x {record(span)} y", "log").spans
    assert read == span


def test_the_command_prints_both_accountings_and_writes_all_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    for rank in (0, 1):
        records = (("HDF5 File Read", 0, 2), ("Load File", 0, 3), ("Training Iteration", 0, 9))
        (tmp_path / "logs" / str(rank)).write_text("".join(python2(0, rank, *of)[1:-1] for of in records))
    words = ["trace", str(tmp_path / "logs"), "--csv", str(tmp_path / "all.csv")]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "2.00 (22 %)" in told
    assert "6.00 (67 %)" in told
    assert all(len(line) <= 80 for line in told.splitlines())
    header, *rows = csv.reader((tmp_path / "all.csv").open())
    assert tuple(header) == HEADER
    assert len(rows) == 6
    assert main([*words, "--json", "--nodes", "1"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["hep"]["0"] == {"read": 4.0, "load": 2.0, "training": 12.0, "checkpoint": 0.0}
    assert shown["overlap"] == {"first": 2.0, "second": 9.0, "both": 2.0}


def test_a_table_holds_no_formula(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(python2(0, 0, "HDF5 File Read", 0, 2).replace("HDF5 File Read", "=1+1"))
    assert main(["trace", str(tmp_path / "log"), "--csv", str(tmp_path / "all.csv")]) == 0
    _, row = csv.reader((tmp_path / "all.csv").open())
    assert "'=1+1" in row


def test_training_that_comes_out_negative_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    for loaded, told in ((12, True), (8, False)):
        records = (("HDF5 File Read", 0, 2), ("Load File", 0, loaded), ("Training Iteration", 0, 9))
        log.write_text("\n".join(python2(0, 0, *of) for of in records))
        assert main(["trace", str(log)]) == 0
        assert ("Training is negative" in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("component", "calls", "sizes"),
    [("HDF5 File Read", 1024, ("426,908,752", "56,600,032")), ("Time to Read Single Image", 1, ("17,694,752",))],
)
def test_a_formula_is_told_with_the_sizes_that_it_charges(
    component: str, calls: int, sizes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(python2(0, 0, component, at, at + 1) for at in range(calls)))
    assert main(["trace", str(log)]) == 0
    told = capsys.readouterr().out
    assert all(size in told for size in sizes)
    assert all(len(line) <= 80 for line in told.splitlines())


def test_epochs_that_the_study_s_script_leaves_out_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    for epochs, told in ((5, False), (7, True)):
        records = [
            python2(at, 0, of, 10 * at, 10 * at + 2) for at in range(epochs) for of in ("HDF5 File Read", "Load File")
        ]
        records.append(python2(400, 0, "Checkpoint Listener", 1, 2))  # the study's have their step for an epoch
        log.write_text("\n".join(records))
        assert main(["trace", str(log)]) == 0
        assert ("The log has 2 more epochs" in capsys.readouterr().out) == told


@pytest.mark.parametrize("record", [STEP[:150], python2(0, 1, "Load File", 2.0, 1.0)])
def test_a_damaged_log_is_printed_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str) -> None:
    (tmp_path / "log").write_text(f"{record}\n{LATER}\n")
    assert main(["trace", str(tmp_path / "log")]) == 5
    told = capsys.readouterr().out
    assert "HDF5 File Read" in told
    assert "problem  " in told


def test_a_log_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.txt").write_text("nothing of the kind")
    assert main(["trace", str(tmp_path / "other.txt")]) == 2
    assert "no record of TimeLogger" in capsys.readouterr().err
