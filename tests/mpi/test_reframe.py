"""The shipped ReFrame check, run by ReFrame as a site does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.mpi.conftest import dlio

SITE = """
import sys
import reframe as rfm
from dlio_bench.harness.integration.reframe_check import DlioBench

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
class Judged(Copied):
    command = "copy.py JUDGED"

@rfm.simple_test
class Nothing(Copied):
    command = "-c pass"
"""
COPY = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[3])\n"


def test_reframe_runs_the_check_and_tells_its_metrics(cache: Path, tmp_path: Path) -> None:
    dlio(cache, tmp_path, "run", "hepcnnb", "--tiny", "--reader", "naive", "--out", "sound")
    for name in ("invalid", "judged"):
        shutil.copytree(tmp_path / "sound", tmp_path / name)
    path = tmp_path / "invalid" / "naive-1x1" / "result.json"
    result = json.loads(path.read_text())
    result["class"] = "INVALID"
    result["checks"][0].update(ok=False, found="3 fields differ")
    path.write_text(json.dumps(result))
    judgement = {"verdict": "fail", "reasons": ["1 of 1 limits missed"]}
    (tmp_path / "judged" / "judgement.json").write_text(json.dumps(judgement))
    (tmp_path / "copy.py").write_text(COPY)
    site = SITE.replace("copy.py", str(tmp_path / "copy.py"))
    for name in ("sound", "invalid", "judged"):
        site = site.replace(name.upper(), str(tmp_path / name))
    (tmp_path / "site.py").write_text(site)

    report = tmp_path / "report.json"
    scripts = Path(sys.executable).parent
    words = [scripts / "reframe", "-c", "site.py", "-r", "--prefix", tmp_path / "rfm", "--report-file", report]
    environment = os.environ | {"HOME": str(tmp_path), "DLIO_BENCH_CACHE": str(cache), "TMPDIR": str(tmp_path)}
    environment["PATH"] = f"{scripts}:{environment['PATH']}"
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)

    cases = {case["name"]: case for case in json.loads(report.read_text())["runs"][0]["testcases"]}
    told = {name: (case["result"], str(case["fail_reason"])) for name, case in cases.items()}
    assert told["Real"] == ("pass", "None"), done.stdout
    assert told["TooSlow"][0] == "fail"
    assert "samples_per_second" in told["TooSlow"][1]
    assert told["Invalid"][0] == "fail"
    assert "naive-1x1 is INVALID" in told["Invalid"][1]
    assert "3 fields differ" in told["Invalid"][1]
    assert told["Judged"][0] == "fail"
    assert "1 of 1 limits missed" in told["Judged"][1]
    assert told["Nothing"][0] == "fail"
    assert "no result was written" in told["Nothing"][1]
    [metrics] = [result["metrics"] for result in read(tmp_path / "rfm" / "output")]
    found = {name.rpartition(":")[2]: figures for name, figures in cases["Real"]["perfvalues"].items()}
    assert found.keys() == {"delivered_bandwidth", "samples_per_second", "stall_share"}
    for name, (value, *_, unit, _) in found.items():
        assert value == metrics[name]["value"]
        assert unit == metrics[name]["unit"]


def read(folder: Path) -> list[dict[str, Any]]:
    """The results that ReFrame has kept."""
    return [json.loads(path.read_text()) for path in folder.rglob("result.json")]
