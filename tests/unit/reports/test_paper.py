"""Figures in files, LaTeX, and what a notebook shows without scripts; the ratio of readers in every export."""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cli import main
from dlio_bench.harness.notebooks import figures, studies
from dlio_bench.reports.document.collection import load_all
from dlio_bench.reports.document.result import save
from dlio_bench.reports.export import frames
from dlio_bench.reports.run.result_drawing import UNKNOWN, error_bars
from dlio_bench.reports.view import static

BEGINS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.fixture
def delivered(made: Callable[..., Any], tmp_path: Path) -> Path:
    """A folder with two readers at one and at four nodes, of five trials."""
    for nodes in (1, 4):
        for reader in ("naive", "prefetch"):
            save(*made(reader, nodes, 5), tmp_path / "r" / f"{reader}-{nodes}")
    return tmp_path / "r"


def test_every_figure_of_the_page_is_a_file_the_same_each_time(delivered: Path, capsys: Any) -> None:
    out, again = delivered.parent / "paper", delivered.parent / "again"
    for folder in (out, again):
        assert main(["report", str(delivered), "--figures", str(folder), "--json"]) == 0
    files = json.loads(capsys.readouterr().out.splitlines()[0])["files"]
    assert {"times.svg", "phases.svg", "scaling.svg", "steps.svg", "map0.svg", "figures.tex"} <= {*files}
    assert {path.name for path in out.iterdir()} == {*files}
    assert all((out / name).read_bytes() == (again / name).read_bytes() for name in files)
    text = (out / "figures.tex").read_text()
    assert text.count("\\includegraphics") == text.count("Marks: VIRTUAL NODES") == len(files) - 1
    assert r"median of 5 trials, 94 \% confidence interval" in text
    assert not (delivered / "report.html").exists()


@pytest.mark.parametrize("kind", static.FORMATS)
def test_each_format_is_what_it_says(kind: str) -> None:
    drawn = figures.histories([{"loss": [2.0, 1.0], "acc": [0.5, 0.6], "val_loss": [2.0, 1.5], "val_acc": [0.4, 0.5]}])
    assert static.image(drawn, kind, "TINY").startswith(BEGINS[kind])
    assert static.image(drawn, kind, "TINY") == static.image(drawn, kind, "TINY")


def test_an_absent_interval_has_no_bar_and_no_cap() -> None:
    fixed = {"yaxis": {"range": [0, 3]}}

    def caps(ends: list[tuple[float, float] | None]) -> int:
        bars = {
            "type": "bar",
            "x": ["a", "b"],
            "y": [1.0, 2.0],
            "error_y": error_bars([*zip([1.0, 2.0], ends, strict=True)]),
        }
        return static.image({"data": [bars], "layout": figures.layout("s", "") | fixed}, "svg").count(b"<use ")

    none, one, both = (caps(ends) for ends in ([None, None], [(0.5, 1.5), None], [(0.5, 1.5), (1.5, 2.5)]))
    assert (one - none, both - one) == (2, 2)


def test_notebooks_show_an_image_and_no_cap_where_there_is_one_trial(made: Callable[..., Any]) -> None:
    table = frames.TABLES["metrics"]([made("naive", 4, 1), made("prefetch", 4, 5)])
    drawn = studies.bars(table, "elapsed_seconds", "elapsed time")
    array = drawn["data"][0]["error_y"]["array"]
    assert (array[0], array[1] > 0) == (UNKNOWN, True)
    data, _ = figures.Drawn(drawn)._repr_mimebundle_()
    assert {*data} == {"application/vnd.plotly.v1+json", "image/png"}, "HTML would be taken first, and be empty"
    assert base64.b64decode(data["image/png"]).startswith(BEGINS["png"])
    assert json.loads(json.dumps(data["application/vnd.plotly.v1+json"]))["data"][0]["type"] == "bar"


def test_without_matplotlib_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'dlio-bench\[figures\]'"):
        static.image({"data": [], "layout": figures.layout("", "")}, "svg")


def test_the_ratio_with_its_interval_is_in_every_export(delivered: Path, capsys: Any) -> None:
    def exported(*words: str) -> str:
        assert main(["export", str(delivered), "--to", *words]) == 0
        return str(capsys.readouterr().out)

    table = frames.TABLES["metrics"](load_all([delivered]))
    rows = table[table["metric"] == "elapsed_over_first"].set_index(["reader", "nodes"])
    ratio = rows.loc[("prefetch", 4)]
    assert (rows.loc[("naive", 4)]["value"], ratio["coverage"]) == (1.0, 0.95)
    assert ratio["ci_low"] <= ratio["value"] <= ratio["ci_high"] < 1
    short = f"{ratio['value']:.2f} [{ratio['ci_low']:.2f}, {ratio['ci_high']:.2f}]"
    latex = exported("latex")
    assert short in latex
    assert r"Marks: VIRTUAL NODES" in latex
    assert "94 \\% confidence interval; $\\times$ first" in latex
    assert f"elapsed_over_first,ratio,ratio of medians,5,{float(ratio['value'])!r}," in exported(
        "csv", "--table", "metrics"
    )
    assert f'name="elapsed_over_first ci" value="{ratio["ci_low"]:.15g} {ratio["ci_high"]:.15g}"' in exported("junit")
    metrics = [
        line for line in exported("openmetrics").splitlines() if line.startswith("dlio_bench_elapsed_over_first")
    ]
    assert any('statistic="ci_high"' in line and line.endswith(repr(float(ratio["ci_high"]))) for line in metrics)
    benchmarks = json.loads(exported("pytest-benchmark"))["benchmarks"]
    assert [ratio["ci_low"], ratio["ci_high"]] in [
        each["extra_info"]["intervals"].get("elapsed_over_first") for each in benchmarks
    ]
