"""The shipped ReFrame check, run by ReFrame as a site does."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.conftest import dlio
from tests.plans import TINY

SITE = """
import sys
import reframe as rfm
from reframe_check import DlioBench

@rfm.simple_test
class Real(DlioBench):
    command = "run hepcnnb --tiny --reader naive"
    reference = {"*": {"stall_share": (0.5, -1.0, 1.0, "share"), "samples_per_second": (1e-3, -0.1, None, "samples/s")}}

class Copied(DlioBench):
    executable = sys.executable

@rfm.simple_test
class TooSlow(Copied):
    command = "copy.py SOUND"
    reference = {"*": {"samples_per_second": (1e12, -0.1, None, "samples/s")}}

@rfm.simple_test
class Invalid(Copied):
    command = "copy.py INVALID"

@rfm.simple_test
class Accepted(DlioBench):
    command = "accept PLAN"
    metrics = ["delivered_bandwidth"]
    reference = {"*": {"results/cdb-1x1/naive-1x1.delivered_bandwidth": (1e3, -0.1, None, "B/s")}}

@rfm.simple_test
class Refused(DlioBench):
    command = "accept RAISED"

@rfm.simple_test
class Nothing(Copied):
    command = "-c pass"
"""
PLAN = f"""{TINY.replace('"prefetch"', '"double-buffer"')}
[limits.cdb."*"."1x1"]
delivered_bandwidth = {{ at_least = "1 kB/s" }}
"""
COPY = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[3])\n"
REFRAME = """#!{python}
import sys
sys.modules["dlio_bench"] = None  # as in an environment of ReFrame's own
from reframe.frontend.cli import main
sys.exit(main())
"""
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
Shell = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(cache: Path, tmp_path: Path) -> Shell:
    """Runs a line as a site does, with a ReFrame whose Python has no dlio-bench."""
    script = tmp_path / "bin" / "reframe"
    script.parent.mkdir()
    script.write_text(REFRAME.format(python=sys.executable))
    script.chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path), "DLIO_BENCH_CACHE": str(cache), "TMPDIR": str(tmp_path)}
    environment["PATH"] = f"{script.parent}:{Path(sys.executable).parent}:{environment['PATH']}"
    return lambda line: subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True
    )


def test_reframe_works_as_the_page_says(shell: Shell, tmp_path: Path) -> None:
    """With smaller runs than the page's, and references that they hold."""
    section = HOW_TO.read_text("utf-8").partition("## ReFrame")[2]
    first, code, last = re.findall(r"(?s)```\w*\n(.*?)```", section)
    for old, new in (
        (" --nodes 8 --ranks-per-node 4", " --tiny"),
        (" --data /scratch/cdb", ""),
        ("12e9, -0.10", "1, -0.10"),
        ("0.05, None, 0.20", "0.5, -1.0, 1.0"),
    ):
        assert old in code
        code = code.replace(old, new)
    (tmp_path / "climate.py").write_text(code)
    get, once, _ = first.splitlines()
    listed, referenced = last.splitlines()
    assert shell(get).returncode == 0
    for line in (once.replace("--nodes 8", "--tiny"), listed, referenced):
        done = shell(line)
        assert done.returncode == 0, done.stdout
        assert "Ran 1/1 test case(s)" in done.stdout or line == listed, done.stdout
    (tmp_path / "reframe_check.py").unlink()
    assert shell(listed).returncode == 1


def test_reframe_runs_the_check_and_tells_its_metrics(cache: Path, shell: Shell, tmp_path: Path) -> None:
    dlio(cache, tmp_path, "run", "hepcnnb", "--tiny", "--reader", "naive", "--out", "sound")
    shutil.copytree(tmp_path / "sound", tmp_path / "invalid")
    path = tmp_path / "invalid" / "naive-1x1" / "result.json"
    result = json.loads(path.read_text())
    result["class"] = "INVALID"
    result["checks"][0].update(ok=False, found="3 fields differ")
    path.write_text(json.dumps(result))
    (tmp_path / "data").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "raised.toml").write_text(PLAN.replace("1 kB/s", "900 TB/s").replace('"data"', '"other"'))
    (tmp_path / "copy.py").write_text(COPY)
    site = SITE.replace("copy.py", str(tmp_path / "copy.py"))
    for name in ("sound", "invalid", "plan.toml", "raised.toml"):
        site = site.replace(name.partition(".")[0].upper(), str(tmp_path / name))
    (tmp_path / "site.py").write_text(site)

    report = tmp_path / "report.json"
    shell("dlio-bench help reframe_check.py > reframe_check.py")
    done = shell("reframe -c site.py -r --prefix rfm --report-file report.json")

    cases = {case["name"]: case for case in json.loads(report.read_text())["runs"][0]["testcases"]}
    told = {name: (case["result"], str(case["fail_reason"])) for name, case in cases.items()}
    assert told["Real"] == ("pass", "None"), done.stdout
    assert told["TooSlow"][0] == "fail"
    assert "samples_per_second" in told["TooSlow"][1]
    assert told["Invalid"][0] == "fail"
    assert "naive-1x1 is INVALID" in told["Invalid"][1]
    assert "3 fields differ" in told["Invalid"][1]
    assert told["Accepted"] == ("pass", "None")
    assert told["Refused"][0] == "fail"
    assert "2 of 2 limits missed" in told["Refused"][1]
    assert told["Nothing"][0] == "fail"
    assert "no result was written" in told["Nothing"][1]
    kept = {
        path.parent.relative_to(folder).as_posix(): json.loads(path.read_text())["metrics"]
        for folder in (tmp_path / "rfm" / "output").rglob("results")
        if folder.parent.name.startswith(("Real", "Accepted"))
        for path in folder.rglob("result.json")
    }
    assert told_metrics(cases["Real"]) == {
        name: told_metric(kept["naive-1x1"], name)
        for name in ("delivered_bandwidth", "samples_per_second", "stall_share")
    }
    assert told_metrics(cases["Accepted"]) == {
        f"{folder}.delivered_bandwidth": told_metric(kept[folder], "delivered_bandwidth")
        for folder in ("results/cdb-1x1/naive-1x1", "results/cdb-1x1/double-buffer-1x1")
    }
    [reference] = [figures[1] for name, figures in cases["Accepted"]["perfvalues"].items() if "/naive-" in name]
    assert reference == 1e3  # which the site gave by the name of the metric


def told_metrics(case: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """Value and unit of each performance variable that ReFrame reports."""
    return {name.rpartition(":")[2]: (value, unit) for name, (value, *_, unit, _) in case["perfvalues"].items()}


def told_metric(metrics: dict[str, Any], name: str) -> tuple[float, str]:
    """Value and unit of a metric of a result."""
    return metrics[name]["value"], metrics[name]["unit"]
