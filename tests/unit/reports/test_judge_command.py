"""`dlio-bench judge` on files: the same answer everywhere, and files that are not as they were written."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.benchmarks.published_models.models import SUBSET, models_by_name
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.errors import one_of
from dlio_bench.harness.cli import main
from dlio_bench.reports.document.result import save
from tests.results import complete

LIMITS = """\
allow_marks = ["VIRTUAL NODES"]
[cdb."*"."4x1"]
delivered_bandwidth = { at_least = "100 MB/s" }
"""
Judge = Callable[..., dict[str, Any]]
WAYS: tuple[list[str], ...] = ([], ["--json"], ["--junit", "junit.xml", "--markdown", "summary.md"])
# what a machine that only judges lacks
BARE = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mpi4py", "h5py", "tensorflow", "horovod"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from dlio_bench.harness.cli import main
for way in {WAYS}:
    assert main([*sys.argv[1:], *way]) == 0
"""


@pytest.fixture
def delivered(draft_and_steps: Callable[..., Any], tmp_path: Path) -> Path:
    """A folder with two results and their limits."""
    for reader in ("naive", "prefetch"):
        draft, steps = draft_and_steps(reader, 4, 5)
        save(complete(draft, steps), steps, tmp_path / "delivered" / f"{reader}-4x1")
    (tmp_path / "delivered" / "limits.toml").write_text(LIMITS)
    return tmp_path / "delivered"


@pytest.fixture
def judged(delivered: Path, capsys: pytest.CaptureFixture[str]) -> Judge:
    """The judgement of the folder, which must end with this status."""

    def judge(status: int) -> dict[str, Any]:
        assert main(["judge", str(delivered), "--limits", str(delivered / "limits.toml"), "--json"]) == status
        return dict(json.loads(capsys.readouterr().out))

    return judge


def test_the_same_files_give_the_same_bytes_on_a_machine_without_mpi_hdf5_and_tensorflow(
    delivered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    elsewhere = tmp_path / "another" / "place"
    shutil.copytree(delivered, elsewhere)
    (elsewhere / "prefetch-4x1").rename(elsewhere / "a-4x1")  # another order of the files
    monkeypatch.chdir(tmp_path)
    for way in WAYS:
        assert main(["judge", "delivered", "--limits", "delivered/limits.toml", *way]) == 0
    bare = subprocess.run(
        [sys.executable, "-P", "-c", BARE, "judge", ".", "--limits", "limits.toml"],
        cwd=elsewhere, capture_output=True, check=False, env=os.environ | {"TZ": "Asia/Tokyo", "HOSTNAME": "judge"},
    )  # fmt: skip
    assert (bare.returncode, bare.stderr) == (0, b"")
    assert bare.stdout == capsysbinary.readouterr().out
    assert bare.stdout.startswith(b"ACCEPTANCE, PASS\n")
    document = (tmp_path / "junit.xml").read_bytes()
    assert (elsewhere / "junit.xml").read_bytes() == document
    summary = (tmp_path / "summary.md").read_text()
    assert (elsewhere / "summary.md").read_text() == summary
    assert summary.startswith("## ACCEPTANCE, PASS: Climate Data Benchmark")
    rows = [line for line in summary.splitlines() if line.startswith("| holds | cdb")]
    assert len(rows) == 2
    assert "at least 100 MB/s" in rows[0]
    assert ET.fromstring(document).get("tests") == "2"


def test_an_altered_number_is_named(delivered: Path, judged: Judge) -> None:
    assert judged(0)["verdict"] == "pass"
    file = delivered / "naive-4x1" / "result.json"
    document = json.loads(file.read_text())
    document["metrics"]["delivered_bandwidth"]["value"] *= 2
    file.write_text(json.dumps(document))
    judgement = judged(3)
    [naive, prefetch] = judgement["results"]
    assert (naive["verdict"], prefetch["verdict"], judgement["verdict"]) == ("invalid", "pass", "invalid")
    assert [reason["rule"] for reason in naive["reasons"]] == ["altered", "metrics"]
    assert naive["reasons"][0]["text"].startswith("its digest does not match: ")
    assert naive["reasons"][1]["text"].startswith("metrics.delivered_bandwidth is ")
    limits = delivered / "limits.toml"
    assert main(["judge", str(delivered), "--limits", str(limits), "--junit", str(delivered / "junit.xml")]) == 3
    [error] = ET.parse(delivered / "junit.xml").getroot().iter("error")
    assert str(error.get("message")).startswith("its digest does not match: ")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text.replace("result/5", "result/9"), "'naive-4x1/result.json' is of schema"),
        (lambda text: text[: len(text) // 2], "'naive-4x1/result.json' is not JSON"),
    ],
)  # fmt: skip
def test_a_file_without_a_result_is_invalid_whatever_the_others_hold(
    delivered: Path, judged: Judge, damage: Callable[[str], str], says: str
) -> None:
    file = delivered / "naive-4x1" / "result.json"
    file.write_text(damage(file.read_text()))
    judgement = judged(3)
    [unreadable] = judgement["unreadable"]
    assert unreadable["file"] == "naive-4x1/result.json"
    assert unreadable["reason"].startswith(says)
    assert judgement["verdict"] == "invalid"


def test_a_missed_limit_ends_with_1_and_names_limit_found_and_interval(
    delivered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (delivered / "limits.toml").write_text(LIMITS.replace("100 MB/s", "376 MB/s"))
    assert main(["judge", str(delivered), "--limits", str(delivered / "limits.toml")]) == 1
    told = capsys.readouterr().out
    assert told.startswith("ACCEPTANCE, FAIL\n  1 of 2 limits missed\n  1 of 2 limits undecided")
    assert "undecided delivered_bandwidth ≥ 376 MB/s 375 MB/s 375 … 379 MB/s" in " ".join(told.split())


def test_a_class_that_is_required_and_not_reached_ends_with_1(
    delivered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits, summary = delivered / "limits.toml", delivered / "summary.md"
    words = ["judge", str(delivered), "--limits", str(limits), "--require", "acceptance"]
    assert main(words) == 0
    limits.write_text(LIMITS.replace('allow_marks = ["VIRTUAL NODES"]', ""))
    assert main(words[:-2]) == 0
    capsys.readouterr()
    assert main([*words, "--junit", str(delivered / "junit.xml"), "--markdown", str(summary)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("EXPLORE, PASS\n")
    assert err == "dlio-bench: --require acceptance: the class is EXPLORE.\n"
    root = ET.parse(delivered / "junit.xml").getroot()
    assert [case.get("type") for case in root.iter("failure")] == ["EXPLORE"] * 2
    assert summary.read_text().startswith("## EXPLORE, PASS")


def test_bad_limits_are_refused(delivered: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "bad.toml").write_text(LIMITS.replace("100 MB/s", "100 MB"))
    assert "at_least is '100 MB'" in refused("judge", "delivered", "--limits", "bad.toml")


def test_a_refusal_lists_names_in_their_order(delivered: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "limits.toml").write_text(LIMITS.replace("[cdb", "[other"))
    known = one_of([*dict.fromkeys((*WORKLOADS, *models_by_name(), SUBSET))])
    assert known in refused("judge", str(delivered), "--limits", "limits.toml")


def test_a_run_refuses_limits_that_it_cannot_meet_before_it_starts(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "limits.toml").write_text(LIMITS)
    run = ("run", "cdb", "--limits", "limits.toml")
    assert "has no limit for cdb with prefetch at 2x1" in refused(*run, "--nodes", "2")
    assert "asks for 5. Give --trials 5" in refused(*run, "--nodes", "4", "--trials", "3")
