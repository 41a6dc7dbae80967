"""`dlio-bench reproduce` as a command: the smoke run of all studies, going on, a site's results, what it refuses."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.studies import files, work
from dlio_bench.harness.ground import parts
from dlio_bench.reports.study.types import REPRODUCED, SEEN, UNTESTABLE
from tests.needs import needs

pytestmark = pytest.mark.slow

Refused = Callable[..., str]
SIMULATED = "simulated-scenarios"
MOST_BYTES = 300_000  # of the page of all studies


@needs("fuse")
def test_the_smoke_run_of_all_studies(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    status = main(["reproduce", "--size", "smoke", "--out", str(out), "--json"])
    document = json.loads(capsys.readouterr().out)
    answers = {answer["study"]: answer for answer in document["studies"]}
    assert status in (0, 1, 3, 6)  # no command failed; times of a busy machine may hide an effect
    assert list(answers) == list(files.shipped_studies())
    assert answers[SIMULATED]["verdict"] == "within 1.3 % (1 of 4 claims tested)"
    assert next(iter(document["kinds"])) == "measured"
    assert answers["access-frequency"]["claims"][0]["value"] == pytest.approx(323, rel=0.1)
    assert answers["control-tree"]["verdict"] == REPRODUCED
    assert [claim["verdict"] for claim in answers["gradient-lag"]["claims"]] == [UNTESTABLE, *3 * [REPRODUCED]]
    assert answers["cdb-reads"]["verdict"] in (SEEN, UNTESTABLE)  # counts, which no machine changes
    assert answers["clairvoyant-live"]["files"]
    assert not answers["hepcnnb-shuffle"]["files"]
    assert answers["hepcnnb-shuffle"]["verdict"] == UNTESTABLE
    assert "(smoke)" in answers["hepcnnb-shuffle"]["why"]
    assert (out / "report.html").stat().st_size < MOST_BYTES
    assert not (out / "cdb-reads" / "data").exists()  # a dataset goes when nothing needs it any more

    # the same command measures nothing again, and a folder stays of one size
    monkeypatch.setattr(parts, "run_command", lambda *_, **__: pytest.fail("a command was started again"))
    assert main(["reproduce", "--size", "smoke", "--out", str(out)]) == status
    shown = capsys.readouterr()
    assert f"{SIMULATED}, S1: finished before" in shown.err
    assert f"WITHIN 1.3 % (1 of 4 claims tested)  {SIMULATED}" in shown.out
    assert main(["reproduce", "--size", "laptop", "--out", str(out)]) == 2
    assert "Results are never mixed: choose a new folder" in " ".join(capsys.readouterr().err.split())
    altered = out / SIMULATED / f"S1{work.DONE}"
    altered.write_text(altered.read_text().replace("S1", "S2"))
    assert main(["reproduce", SIMULATED, "clairvoyant-live", "--size", "smoke", "--out", str(out)]) == 4
    shown = capsys.readouterr()
    assert "clairvoyant-live, " in shown.err  # the others go on
    assert f"FAILED  {SIMULATED}" in shown.out
    assert "another command" in shown.out
    begun = out / "begun.json"
    begun.write_text(begun.read_text().replace('"code_digest": "', '"code_digest": "0'))
    assert main(["reproduce", SIMULATED, "--size", "smoke", "--out", str(out)]) == 2
    assert "with another version of dlio-bench" in " ".join(capsys.readouterr().err.split())

    # its results are judged as those of a site are, each study by the results in its folder
    monkeypatch.chdir(tmp_path)
    shutil.copytree(out / SIMULATED, out / "another-study")
    assert main(["reproduce", SIMULATED, "--against", str(out), "--out", "judged", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["studies"][0]["claims"][0]["value"] == answers[SIMULATED]["claims"][0]["value"]
    assert (judged["size"], judged["against"]) == (None, str(out))
    for name, content in (("cut", '{"schema": '), ("others", '{"schema": "dlio-bench/checkpoint/1"}')):
        (out / name).mkdir()
        (out / name / "result.json").write_text(content)
    assert main(["reproduce", SIMULATED, "--against", str(out), "--out", "again", "--json"]) == 5
    judged = json.loads(capsys.readouterr().out)
    assert {Path(entry["file"]).parent.name: entry["damaged"] for entry in judged["skipped"]} == {
        "cut": True, "others": False,
    }  # fmt: skip
    assert judged["studies"][0]["claims"][0]["value"] == answers[SIMULATED]["claims"][0]["value"]
    assert "no result of a run" in Path("again/report.html").read_text()


def test_a_command_that_fails_leaves_the_others_and_ends_with_its_status(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(parts, "run_command", lambda *_, **__: -signal.SIGKILL)
    words = ["reproduce", SIMULATED, "digital-twin", "--size", "smoke", "--out", str(tmp_path / "out")]
    assert main(words) == 4
    shown = " ".join(capsys.readouterr().out.split())
    assert "was ended by SIGKILL" in shown
    assert "its file was checked alone" in shown


def test_the_message_of_a_failed_command_is_kept(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
    study = files.shipped_studies()[SIMULATED].read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(study.replace('scenario = "S1" }\n[[run', 'scenario = "S1", system = "nowhere.toml" }\n[[run'))
    out = tmp_path / "out"
    assert main(["reproduce", str(mine), "--size", "smoke", "--out", str(out), "--json"]) == 4
    capsys.readouterr()
    answer = json.loads((out / "reproduce.json").read_text())["studies"][0]
    assert answer["outcome"] == "failed"
    assert "nowhere.toml" in answer["failure"].partition("ended with status 2: ")[2]
    assert "ended with status 2: " in (out / "report.html").read_text()


def test_the_list_and_the_plan_start_nothing(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text.splitlines() for name in files.shipped_studies())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert main(["reproduce", "list", SIMULATED, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[SIMULATED]["claim"][0]["published"][0]["value"] == 0.066
    assert main(["reproduce", "--size", "smoke", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "dlio-bench simulate" in text
    assert "hepcnnb-shuffle" in text.splitlines()
    assert main(["reproduce", "hepcnnb-shuffle", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["studies"]["hepcnnb-shuffle"]
    made, runs = plan["commands"] or ([], [])  # none where nothing can be emulated
    assert bool(made) == (plan["lacking"] is None)
    assert not made or made[-1] in runs
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder_for_results(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        assert main(["reproduce", SIMULATED, "--size", "smoke", "--out", str(tmp_path / place)]) == UsageError.status


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["reproduce", SIMULATED, "--size", "smoke", "--out", str(tmp_path)]) == UsageError.status
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
