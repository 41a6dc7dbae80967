"""Where the time of a run went, from a real result: tables, a trace in the Trace Event Format, TimeLogger's records."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports.document.collection import load_all
from dlio_bench.reports.traces.timelogger import parse
from dlio_bench.reports.traces.trainers import breakdown, phases, spans

GOLDEN = Path(__file__).parents[2] / "golden" / "result-3"


def test_the_phases_add_up_to_the_loop() -> None:
    [(result, steps)] = load_all([GOLDEN])
    for trial in range(len(result.trials)):
        rows = breakdown(steps, trial)
        assert sum(row.loop for row in rows) == pytest.approx(steps["loop"][trial].mean(), rel=1e-9)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert [row.share for row in rows] == pytest.approx([row.loop / steps["loop"][trial].mean() for row in rows])
        assert all(row.worst >= row.loop for row in rows)
        stall = steps["stall"][trial]
        by_hand = [stall[:, steps["epoch"] == epoch].sum(axis=1).mean() for epoch in range(3)]
        assert rows[0].phase == "stall"
        assert rows[0].first_epoch == pytest.approx(by_hand[0])
        assert rows[0].later_epoch == pytest.approx(sum(by_hand[1:]) / 2)


def test_phases_follow_each_other_inside_the_loop() -> None:
    [(_, steps)] = load_all([GOLDEN])
    for rank in (0, 1):
        entries = list(phases(steps, 1, [rank]))
        ends = np.array([entry.start + entry.seconds for entry in entries])
        starts = np.array([entry.start for entry in entries])
        assert (starts[1:] >= ends[:-1] - 1e-9).all()
        assert starts[0] >= 0
        assert ends[-1] <= steps["loop"][1][rank] + 1e-9
        assert {entry.name for entry in entries} == {"stall", "check", "compute", "exchange", "validation"}


def test_the_trace_is_in_the_trace_event_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The format's document: complete events have name, cat, ph X, ts and dur in microseconds, pid, tid."""
    file = tmp_path / "trace.json"
    assert main(["trace", str(GOLDEN), "--chrome", str(file), "--trial", "2", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)
    trace = json.loads(file.read_text())
    assert told["trial"] == trace["otherData"]["trial"] == 2  # as --trial names it
    seconds: dict[str, float] = defaultdict(float)
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert event["pid"] in (0, 1)
        if event["ph"] == "X":
            assert event["tid"] == 1
            assert event["ts"] >= 0
            assert event["dur"] > 0
            assert event["args"]["epoch"] in (0, 1, 2)
            seconds[event["name"]] += event["dur"] / 2e6  # two ranks
    for row in told["phases"]:
        if row["phase"] != "other":
            assert seconds[row["phase"]] == pytest.approx(row["loop"])


def test_a_validation_pass_is_a_part_of_the_step_before_it() -> None:
    [(_, steps)] = load_all([GOLDEN])
    long, short = (
        sum(span.seconds for span in spans(steps, 1, with_passes=passes) if span.component == "Training Iteration")
        for passes in (True, False)
    )
    assert long - short == pytest.approx(steps["validation"][1].sum())


def test_steps_are_told_as_timelogger_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.txt"
    assert main(["trace", str(GOLDEN), "--timelogger", str(file)]) == 0
    log = parse(file.read_text(), "log")
    assert not log.problems
    [(_, steps)] = load_all([GOLDEN])
    count: dict[str, int] = defaultdict(int)
    for span in log.spans:
        count[span.component] += 1
    whole = steps["stall"][0].size
    assert count == {"Training Loop": 2, "Training Iteration": whole, "Call to Next Batch": whole}
    capsys.readouterr()
    assert main(["trace", str(file)]) == 0
    assert "Training Iteration" in capsys.readouterr().out
