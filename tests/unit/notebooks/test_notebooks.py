"""The notebooks as they are stored, and what their cells call, without Jupyter."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.notebooks import commands, figures, live_view, studies
from dlio_bench.harness.notebooks.commands import Command, new_folder
from dlio_bench.reports.export.frames import TABLES
from tests.processes import PATIENCE, gone, until
from tests.results import complete

NOTEBOOKS = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))
Made = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


def test_notebooks_are_stored_without_outputs_and_say_what_they_are() -> None:
    assert len(NOTEBOOKS) == 4
    page = (NOTEBOOKS[0].parents[1] / "how-to" / "use-notebooks.md").read_text()
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == [], path
        first = "".join(cells[0]["source"])
        assert cells[0]["cell_type"] == "markdown"
        assert all(
            part in first for part in ("# ", "**What it shows.**", "**What it needs.**", "**How long it takes.**")
        )
        assert f"notebooks/{path.name})" in page


def record(at: float, **known: Any) -> dict[str, Any]:
    """A record of status.jsonl."""
    empty = dict.fromkeys(
        (*live_view.PANELS, "reader", "nodes", "trial", "trials", "epoch", "epochs", "step", "message")
    )
    return {**empty, "steps": None, "progress": None, "time": at, "phase": "timed", **known}


def test_records_become_a_sentence_curves_and_progress() -> None:
    known = {"reader": "prefetch", "nodes": 2, "trial": 1, "trials": 3, "epoch": 1, "step": 17, "steps": 64}
    read = {"pfs": 7, "ram": 1, "local": None, "remote": 0}
    records = [
        record(100.0, phase="preparing"),
        record(101.5, samples_per_second=812.0, loss=0.5, bytes=read, progress=0.31),
        record(103.0, samples_per_second=820.0, stall_share=0.1, message="\x1b[2J<b>", **known),
    ]  # fmt: skip
    curves = live_view.curves(records)
    assert list(curves) == [
        "samples_per_second",
        "stall_share",
        "loss",
        *(f"bytes {name}" for name in live_view.SOURCES),
    ]
    assert curves["samples_per_second"] == ([1.5, 3.0], [812.0, 820.0])
    assert curves["stall_share"] == ([3.0], [0.1])
    assert curves["bytes pfs"] == ([1.5], [7])
    assert curves["bytes local"] == ([], [])
    assert live_view.progress(records) == 0.31
    assert live_view.sentence(records[2]) == (
        "timed · prefetch on 2 nodes · trial 1 of 3 · epoch 1 · step 17 of 64 · \N{REPLACEMENT CHARACTER}[2J<b>"
    )
    assert live_view.sentence(None) == "no status yet"
    assert (live_view.curves([])["loss"], live_view.progress([])) == (([], []), 0.0)


def test_the_curve_and_area_of_a_classifier() -> None:
    labels, scores = np.array([1, 1, 0, 1, 0, 0]), np.array([0.9, 0.8, 0.7, 0.6, 0.6, 0.1])
    false, true = figures.roc_points(labels, scores)
    assert false.tolist() == pytest.approx([0, 0, 0, 1 / 3, 2 / 3, 1])
    assert true.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 1, 1])
    # pairs of signal and background in the right order, ties by half: (3 + 3 + 1.5) of 9
    assert figures.area(labels, scores) == pytest.approx(7.5 / 9)
    assert figures.area(np.array([0, 1]), np.array([0.5, 0.5])) == 0.5
    drawn = figures.outputs(labels, scores)["data"]
    assert [len(bar["x"]) for bar in drawn] == [3, 3]
    lines = figures.histories([{"loss": [2.0, 1.0], "acc": [0.5, 0.6], "val_loss": [], "val_acc": [0.4, 0.5]}])["data"]
    assert [(line["name"], line["yaxis"]) for line in lines] == [
        ("rank 0 loss", "y1"), ("rank 0 acc", "y2"), ("rank 0 val_acc", "y2")
    ]  # fmt: skip


def test_a_study_of_readers_draws_what_the_export_has(draft_and_steps: Made) -> None:
    pairs = []
    for reader, trials in (("naive", 1), ("prefetch", 5)):
        draft, steps = draft_and_steps(reader, 2, trials)
        pairs.append((complete(draft, steps), steps))
    tables = {name: table(pairs) for name, table in TABLES.items()}
    drawn = studies.bars(tables["metrics"], "elapsed_seconds", "elapsed time")
    (bar,) = drawn["data"]
    assert bar["x"] == ["naive, 2 nodes", "prefetch, 2 nodes"]
    assert bar["y"] == [result.metrics["elapsed_seconds"].value for result, _ in pairs]
    assert bar["error_y"]["array"][0] == "-", "one trial has no interval, and no cap"
    assert bar["error_y"]["array"][1] > 0
    lines = studies.stall_by_step(tables["steps"])["data"]
    assert [line["name"] for line in lines] == ["naive", "prefetch"]
    measured = [number for number, trial in enumerate(pairs[0][0].trials) if not trial.warmup]
    slowest = pairs[0][1]["stall"][measured].max(axis=1)
    assert lines[0]["y"] == pytest.approx(np.median(slowest, axis=0).tolist())


def test_a_command_that_fails_tells_its_last_lines(tmp_path: Path) -> None:
    failed = Command([sys.executable, "-c", "print('why'); raise SystemExit(3)"], tmp_path / "log")
    with pytest.raises(EnvironmentFailure, match=r"(?s)ended with status 3.*why"):
        failed.wait()
    with pytest.raises(EnvironmentFailure, match="no-such-program cannot be started"):
        Command(["no-such-program"], tmp_path / "log")
    assert new_folder(tmp_path, "run") != new_folder(tmp_path, "run")


def test_a_command_ends_with_all_that_it_started(tmp_path: Path) -> None:
    program = "import subprocess as s; child = s.Popen(['sleep', '1000']); print(child.pid, flush=True); child.wait()"
    command = Command([sys.executable, "-c", program], tmp_path / "log")
    until(lambda: command.log.read_text().endswith("\n"))
    child = int(command.log.read_text())
    os.kill(child, 0)
    command.end()
    gone([child, command.pid])
    command.end()


def test_a_group_whose_number_may_be_another_s_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import subprocess as s, sys; print(s.Popen(['sleep', '1000']).pid, flush=True); sys.exit(0)"
    command = Command([sys.executable, "-c", program], tmp_path / "log")
    assert command.wait(PATIENCE) == 0
    assert os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT), "not reaped: its number is taken"
    child = int(command.log.read_text())
    os.kill(child, 0)
    command.end()
    gone([child, command.pid])
    assert command.status == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda *_: pytest.fail("a reaped process is signalled"))
        command.end()


def test_a_dataset_that_takes_too_long_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Command] = []

    def stuck(*_: str, out: Path) -> Command:
        started.append(Command(["sleep", "1000"], out.with_name("log")))
        return started[0]

    monkeypatch.setattr(commands, "dlio_bench", stuck)
    with pytest.raises(EnvironmentFailure, match=r"was not over after 0\.1 s"):
        commands.dataset(tmp_path / "data", "hepcnnb", seconds=0.1)
    gone([started[0].pid])
