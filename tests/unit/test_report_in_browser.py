"""The report in a real browser: every figure is drawn, nothing is fetched, no script fails."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports import html
from tests.results import complete

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--no-first-run", "--enable-logging=stderr", "--virtual-time-budget=8000",
]  # fmt: skip

# .ci/run installs Chromium, and fails if a test is skipped.
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
Made = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


@in_chromium
def test_every_figure_is_drawn(draft_and_steps: Made, tmp_path: Path) -> None:
    pairs = []
    for reader in ("naive", "prefetch"):
        draft, steps = draft_and_steps(reader=reader)
        pairs.append((complete(draft, steps), steps))
    page = tmp_path / "report.html"
    html.write(pairs, page)
    assert drawn_in(page, tmp_path / "profile") == {"times", "phases", "map0", "map1", "steps", "bytes"}


@in_chromium
def test_every_map_of_a_grid_is_drawn(tmp_path: Path) -> None:
    words = ["simulate", "--scenario", "S1", "--epochs", "1", "--policy", "shuffled,lbann-preload"]
    assert main([*words, "--vary", "ram=0GB,1GB", "--vary", "nodes=2,4", "--out", str(tmp_path / "out")]) == 0
    found = drawn_in(tmp_path / "out" / "report.html", tmp_path / "profile")
    assert found == {"map0", "map1", "map2"}


def drawn_in(page: Path, profile: Path) -> set[str]:
    """The figures that a browser draws of a page, none of whose scripts may fail."""
    assert CHROMIUM is not None
    asked = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    shown = subprocess.run(asked, capture_output=True, text=True, timeout=120)
    figures = {tag for tag in re.findall(r"<div [^>]*>", shown.stdout) if "js-plotly-plot" in tag}
    drawn = {name for tag in figures for name in re.findall(r'id="(\w+)"', tag)}
    assert shown.stdout.count('class="main-svg"') >= len(drawn)
    console = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    return drawn
