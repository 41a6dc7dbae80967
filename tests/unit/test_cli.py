"""The command line as a user meets it: a real process, its status, one paragraph, no traceback."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dlio_bench.harness import cli
from dlio_bench.harness.storage.pfs.spec import EXAMPLE
from tests.processes import DLIO, dlio


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """told("list") -> what a command of this process says that ends well. It starts in tmp_path."""

    def ask(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
        assert cli.main(arguments) == 0
        return capsys.readouterr().out

    return ask


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "cbd"], "Did you mean 'cdb'"),
        (["run", "cdb", "--reader", "naive,naive"], "has a name twice"),
        (["run", "cdb", "--nodes", "0"], "--nodes: '0'"),
        (["run", "cdb", "--nodes", "4096"], "this machine is too small for so many virtual nodes"),
        (["run", "cdb", "--nodes", "2", "--max-data", "99MB"], "--max-data 1GB"),
        (["run", "cdb", "--min-seconds", "-1"], "--min-seconds: '-1'"),
        (["run", "cdb", "--batch", "-1"], "--batch: '-1'"),
        (["run", "cdb", "--seed", str(2**64)], "to 4611686018427387904"),
        (["run", "cdb", "--compute", "emulate:@absent.toml"], "calibrate --compute"),
        (["run", "cdb", "--cache", "cool"], "Use cold, cold-epochs, first-epoch-cold, warm or as-is"),
        (["run", "cdb", "--sync", "never"], "Use step, epoch or none"),
        (["run", "cdb", "--variant", "xl"], "There is no cdb variant 'xl'. Use cori"),
        (["run", "cdb", "--exchange-timeout", "120"], "--exchange-timeout: '120' has no unit. Write a number and a"),
        (["run", "cdb", "--launcher", "telnet", "--dry-run"], "telnet"),
        (["run", "cdb", "--tiny", "--launcher", "local", "--nodes", "2"], "local"),
        (["run"], "WORKLOAD"),
        (["bench"], "invalid choice"),
        (["rnu", "cdb"], "Did you mean 'run'"),
        (["run", "cdb", "--readr", "naive"], "Did you mean '--reader'"),
        (["run", "cdb", "--read", "naive"], "Did you mean '--reader'"),
        (["generate", "cdb", "--out", "x", "--files", "two"], "--files: 'two'"),
        (["run", "cdb", "--launcher", "srum", "--dry-run"], "Did you mean 'srun'"),
    ],
)
def test_a_wrong_word_is_answered_in_one_paragraph_with_status_2(
    arguments: list[str], says: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert says in refused(*arguments)
    assert list(tmp_path.iterdir()) == []  # nothing was made


def test_help_tells_the_exit_statuses_and_a_wrong_word_ends_a_process_in_a_line(tmp_path: Path) -> None:
    assert "exit status" in dlio(tmp_path, "--help").stdout
    wrong = dlio(tmp_path, "rnu", "cdb", status=2)
    assert wrong.stderr.count("\n") == 1
    assert wrong.stderr.startswith("dlio-bench: ")


def test_help_breaks_no_name_that_is_to_be_copied(tmp_path: Path) -> None:
    done = dlio(tmp_path, "run", "--help", COLUMNS="80")
    assert EXAMPLE in done.stdout
    assert " stage-partition" in done.stdout


def test_list_shows_every_workload_and_marks_estimates(told: Callable[..., str]) -> None:
    found = json.loads(told("list", "--json"))
    assert [workload["name"] for workload in found["workloads"]] == ["hepcnnb", "cdb", "cosmoflow", "imagenet", "wsi"]
    shown = told("list")
    for workload in found["workloads"]:
        assert any(step["device"] == "v100" for step in workload["step_times"])
        assert workload["name"] in shown
        assert all(f"model {model['name']}: " in shown for model in workload["models"])
    estimates = [s for w in found["workloads"] for s in w["step_times"] if s["kind"] == "estimate"]
    assert shown.count("(estimate;") == len(estimates) > 0
    assert shown.count("--compute emulate:") == sum(len(w["step_times"]) for w in found["workloads"])
    assert all(f"\n  {system['name']}  " in shown for system in found["systems"])
    assert {"deck", "cori"} <= {system["name"] for system in found["systems"]}
    assert max(map(len, shown.splitlines())) <= 80
    rows = {reader["name"]: reader for reader in found["readers"]}
    assert set(rows["clairvoyant"]["properties"].values()) == {True}
    assert rows["naive"]["published_properties"] is None
    assert "\n  lbann-preload         - + - + -   - + - + -  LBANN Distributed Data Store\n" in shown
    pipelines = [own for w in found["workloads"] for own in (w["upstream"], *w["upstreams"].values())]
    pipelines = [own for own in pipelines if own is not None]
    assert all(own["departures"] for own in pipelines)
    assert shown.count("not as published: ") == sum(len(own["departures"]) for own in pipelines)


def test_a_dry_run_tells_the_plan_and_makes_nothing(told: Callable[..., str], tmp_path: Path) -> None:
    plan = " ".join(told("run", "cdb", "--nodes", "8", "--dry-run").split())
    parts = (
        "80 samples",
        "about ",
        "making the data ",
        "8 nodes x 1 rank (virtual",
        "mpirun",
        "INVALID",
        "7 epochs of 10",
    )
    assert [part for part in parts if part not in plan] == []
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_may_be_json(told: Callable[..., str]) -> None:
    [plan] = json.loads(told("run", "cdb", "--nodes", "8", "--dry-run", "--json"))
    assert (plan["nodes"], plan["batch"], plan["epochs"], plan["launcher"]) == (8, 1, 7, "mpirun")


@pytest.mark.parametrize(
    ("asked", "batch"),
    [("cosmoflow", 1), ("cosmoflow --compute train", 4), ("hepcnnb --compute train:hepgan", 64)],
)
def test_a_training_has_the_batch_that_its_network_was_published_with(
    told: Callable[..., str], asked: str, batch: int
) -> None:
    [plan] = json.loads(told("run", *asked.split(), "--dry-run", "--json"))
    assert plan["batch"] == batch


def test_one_rank_needs_no_mpi_and_ends_with_everything_written(tmp_path: Path) -> None:
    """On a terminal without Unicode."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = ("run", "cdb", "--tiny", "--reader", "naive,prefetch", "--out", "out")
    done = dlio(tmp_path, *run, DLIO_BENCH_CACHE=str(tmp_path / "cache"), **plain)
    assert "EXPLORE" in done.stdout
    assert "TINY" in done.stdout
    shown = dlio(tmp_path, "show", "out", **plain).stdout
    assert done.stdout == f"{shown}\n  results  out\n  report   out/report.html\n"
    for reader in ("naive", "prefetch"):
        found = json.loads((tmp_path / "out" / f"{reader}-1x1" / "result.json").read_text())
        assert found["class"] == "EXPLORE"
        assert all(check["ok"] for check in found["checks"])
        assert found["environment"]["launcher"]["name"] == "local"
        assert (tmp_path / "out" / f"{reader}-1x1" / "steps.npz").exists()
    assert (tmp_path / "out" / "report.html").stat().st_size > 0
    assert not list((tmp_path / "out").glob("work*"))


def test_a_run_is_judged_by_the_limits_that_are_for_it(tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text(
        '[cdb.naive."1x1"]\nelapsed_seconds = { at_most = "1 ns" }\n[cdb.naive."2x1"]\nau = { at_least = "99 %" }\n'
    )
    run = ("run", "cdb", "--tiny", "--reader", "naive", "--limits", "limits.toml", "--out", "out")
    done = dlio(tmp_path, *run, status=1, DLIO_BENCH_CACHE=str(tmp_path / "cache"))
    assert done.stdout.startswith("EXPLORE, FAIL\n  1 of 1 limit missed\n")
    judgement = json.loads((tmp_path / "out" / "judgement.json").read_text())
    assert (judgement["verdict"], judgement["status"]) == ("fail", 1)
    assert [missing["chosen"] for missing in judgement["missing"]] == [False]
    stored = json.loads((tmp_path / "out" / "naive-1x1" / "result.json").read_text())
    assert (stored["verdict"], stored["plan"]["trials"]) == ("none", 5)  # what was measured; the trials of the limits


def test_an_output_folder_in_use_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "mine.txt").write_text("dear")
    assert "not empty" in refused("run", "cdb", "--tiny", "--out", ".")
    assert (tmp_path / "mine.txt").read_text() == "dear"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_whose_output_nobody_reads_ends_with_status_4_and_says_nothing(unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    # argparse of some Pythons forgives that its help is not read: 3.11.7 does, 3.11.2 does not
    for words, statuses in ((["--version"], {4}), (["doctor"], {4}), (["run", "--help"], {0, 4})):
        ended = subprocess.run([*DLIO, *words], env=env, stdout=write, stderr=subprocess.PIPE, check=False)
        assert ended.returncode in statuses, words
        assert ended.stderr == b"", words
    os.close(write)


def test_a_run_whose_output_nobody_reads_is_finished_all_the_same(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = ["run", "cdb", "--tiny", "--trials", "1", "--warmup-trials", "0", "--no-verify",
             "--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path)]  # fmt: skip
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    ended = subprocess.run([*DLIO, *words], env=env, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert ended.returncode == 4, ended.stderr
    assert not (tmp_path / "out" / "unfinished.json").exists()
    assert json.loads((tmp_path / "out" / "status.jsonl").read_text().splitlines()[-1])["phase"] == "done"
    assert "prefetch" in dlio(tmp_path, *words).stdout  # what was not read is told again
