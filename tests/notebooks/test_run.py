"""Each notebook runs from a fresh kernel to its end, shows what it says, and leaves no process behind."""

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.processes import gone, pids_of

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
PATIENCE = 600  # seconds for a cell, on a machine that is busy otherwise


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[dict[str, Any]]]:
    """(what a notebook's cells print, their rich outputs)."""
    for variable, place in (("IPYTHONDIR", "ipython"), ("JUPYTER_RUNTIME_DIR", "runtime"), ("TMPDIR", "temp")):
        (folder / place).mkdir()
        monkeypatch.setenv(variable, str(folder / place))
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    here = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=PATIENCE, kernel_name="python3", resources=here).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    gone(pid for pid in pids_of(str(folder)) if pid != os.getpid())  # what ends with the kernel ends just behind it
    assert list((folder / "temp").iterdir()) == [], "folders of engines go with them"
    shown = [dict(output["data"]) for output in outputs if "data" in output]
    printed = [output["text"] for output in outputs if output["output_type"] == "stream"]
    # what engines print comes as rich outputs
    return "".join([*printed, *(data.get("text/plain", "") for data in shown)]), shown


def figures(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures among rich outputs."""
    return [data["application/vnd.plotly.v1+json"] for data in shown if "application/vnd.plotly.v1+json" in data]


def test_readers_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, shown = run("compare-readers", tmp_path, monkeypatch)
    assert "TINY" in printed
    elapsed, stall, by_step = figures(shown)
    assert elapsed["data"][0]["x"] == ["naive, 2 nodes", "shuffled, 2 nodes", "prefetch, 2 nodes"]
    assert "TINY" in elapsed["layout"]["title"]["text"]
    assert len(stall["data"][0]["y"]) == len(by_step["data"]) == 3


def test_a_run_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, shown = run("watch-a-run", tmp_path, monkeypatch)
    assert "done · prefetch on 2 nodes" in printed
    assert any("application/vnd.jupyter.widget-view+json" in data for data in shown)


def test_two_ranks_train_on_shares_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, shown = run("train-on-engines", tmp_path, monkeypatch)
    assert "rank 0 of 2 reads 160 samples of each epoch" in printed
    assert "rank 1 of 2 reads 160 samples of each epoch" in printed
    assert "gradients by horovod" in printed
    history, roc, _ = figures(shown)
    lines = {line["name"]: line["y"] for line in history["data"]}
    assert lines["rank 0 val_loss"] == lines["rank 1 val_loss"], "of all ranks' samples"
    assert lines["rank 0 loss"] != lines["rank 1 loss"], "of each rank's own"
    assert all(len(line) == 4 for line in lines.values())
    assert (roc["data"][0]["x"][-1], roc["data"][0]["y"][-1]) == (1, 1)


def test_a_search_survives_what_befalls_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, shown = run("search-hyper-parameters", tmp_path, monkeypatch)
    assert "0 stopped after" in printed
    assert "1 failed after 0 epochs. Diverged: The loss is" in printed
    assert "2 lost after 0 epochs. its engine has died" in printed
    assert "engines started anew: 1" in printed
    ends = [line.split(" after ")[0] for line in printed.splitlines() if " after " in line]
    assert len(ends) == 7
    assert any(end.endswith("done (again 0)") for end in ends)
    assert sum("done" in end for end in ends) == 4
    assert "'samples': 16" in printed
    assert len(figures(shown)) == 2
