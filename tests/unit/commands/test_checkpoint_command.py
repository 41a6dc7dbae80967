"""`dlio-bench checkpoint` of one rank: its result, and what show, report, judge and accept make of it."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from dlio_bench.errors import DataError
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.cluster.entry import Caller
from dlio_bench.harness.commands.checkpoints import command
from dlio_bench.harness.commands.checkpoints.job import Job
from dlio_bench.harness.commands.checkpoints.rank import Rank, measure
from dlio_bench.reports.checkpoint import document as checkpoint
from dlio_bench.reports.checkpoint import view as checkpoint_view
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS, metrics
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.document import result_file
from dlio_bench.reports.document.typed import convert, to_json
from tests.goldens import require_golden

SMALL = ("checkpoint", "hepcnn", "--fraction", "1%", "--shards", "2")
MEASURED = Path("out")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a result with five trials."""
    place = tmp_path_factory.mktemp("checkpoints")
    assert main([*SMALL, "--folder", str(place), "--out", str(place / MEASURED)]) == 0
    return place / MEASURED


def altered(result: Path, change: Callable[[dict[str, Any]], object]) -> Document:
    """The document with other trials, and what follows from them."""
    content = to_json(checkpoint.load(result)) | {"digest": "", "checks": [], "metrics": {}, "marks": []}
    change(content)
    return checkpoint.complete(convert(content, Document))


def judged(folder: Path, limits: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    file = folder / "limits.toml"
    file.write_text(limits)
    capsys.readouterr()
    status = main(["judge", str(folder), "--limits", str(file), "--json"])
    return status, json.loads(capsys.readouterr().out)


def two_ranks(content: dict[str, Any]) -> None:
    content |= {"ranks_per_node": 2, "rank_hosts": ["a", "a"], "bytes": 100}
    for trial in content["trials"]:
        for number, write in enumerate(trial["writes"]):
            write |= {"bytes": 100, "seconds": 4.0 - 3 * number, "rank_seconds": [0.5, 3.5],
                      "rank_synced": [0.25, 1.75], "rank_waited": [0, 0.5], "rank_made": [0, 0],
                      "commit_seconds": 1.0, "commit_synced": 1.0}  # fmt: skip
        for read in trial["reads"]:
            read |= {"seconds": 2.0, "rank_seconds": [1.0, 2.0]}


def two_trials(content: dict[str, Any]) -> None:
    """The median of their rates is another than the rate of their median time."""
    two_ranks(content)
    content |= {"bytes": 600, "trials": content["trials"][:2]}
    for trial, seconds in zip(content["trials"], (1.0, 3.0), strict=True):
        for each in (*trial["writes"], *trial["reads"]):
            each.update({"seconds": seconds} | ({"bytes": 600} if "bytes" in each else {}))


def fixed(content: dict[str, Any]) -> None:
    """What a machine has a part in, and bytes that all were compared."""
    content |= {"folder": "/scratch", "created": "2026-11-21T01:40:00+00:00", "version": "0", "generator": [5e9, 6e9]}
    for trial in content["trials"]:
        trial |= {"compared_bytes": len(trial["reads"]) * content["bytes"], "resident_share": 0.25}
        trial |= {"attestable": False, "note": "nfs", "memory_backed": False}


def test_texts_are_the_golden_ones(result: Path) -> None:
    changes: dict[str, tuple[Callable[[dict[str, Any]], object], ...]] = {
        "two ranks": (two_ranks, fixed),
        "two trials": (two_trials, fixed),
        "content that differs": (two_ranks, fixed, lambda content: content["trials"][1].update(compared_bytes=1)),
    }
    views = {
        name: checkpoint_view.view(altered(result, lambda content, steps=steps: [change(content) for change in steps]))
        for name, steps in changes.items()
    }
    verbose = {"two trials, in detail": views["two trials"].text(verbose=True)}
    require_golden("checkpoint", {name: view.text() for name, view in views.items()} | verbose)


def test_rates_count_the_slowest_rank_and_both_means_are_told(result: Path) -> None:
    told = altered(result, two_ranks).metrics
    assert told["checkpoint_write_seconds"].value == 2.5
    assert told["checkpoint_write_bandwidth"].value == 200 / 5  # bytes over time
    assert told["checkpoint_write_mean_rate"].value == (25 + 100) / 2
    assert told["checkpoint_write_rank0_rate"].value == 200
    assert told["checkpoint_read_bandwidth"].value == told["checkpoint_read_mean_rate"].value == 50
    assert told["checkpoint_read_rank0_rate"].value == 100
    assert told["checkpoint_fsync_share"].value == 0.6  # 0.25 + 1.75 + 1 of the same
    assert told["checkpoint_waited_share"].value == pytest.approx(0.1)  # 0.5 of 0.5 + 3.5 + 1
    assert told["checkpoint_write_bandwidth"].ci == (40, 40)


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (lambda c: c["trials"][1].update(compared_bytes=1), "content"),
        (lambda c: c["trials"][1]["writes"][0].update(fsyncs=3), "fsync"),
        (lambda c: c["trials"][1].update(resident_share=0.5, attestable=True, memory_backed=False), "cold cache"),
    ],
)
def test_what_does_not_hold_makes_it_invalid(change: Callable[[dict[str, Any]], object], failing: str, result: Path,
                                             tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    document = altered(result, change)
    assert document.class_ == "INVALID"
    assert [check.name for check in document.checks if not check.ok] == [failing]
    result_file.save(document, tmp_path)
    status, judgement = judged(tmp_path, '[hepcnn.sharded."1x1"]\ncheckpoint_fsyncs = { at_most = 99 }\n', capsys)
    assert status == (5 if failing == "content" else 3)
    assert [reason["rule"] for reason in judgement["results"][0]["reasons"]] == [failing]


def test_limits_judge_checkpoints_beside_other_readers_and_layouts(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def steady(content: dict[str, Any]) -> None:
        for trial in content["trials"]:
            for each in (*trial["writes"], *trial["reads"]):
                each["seconds"] = 1.0

    result_file.save(altered(result, steady), tmp_path)
    held = '[hepcnn.sharded."1x1"]\ncheckpoint_write_bandwidth = { at_least = "1 B/s" }\nspread = { at_most = "999 %" }'
    status, judgement = judged(tmp_path, held, capsys)
    assert (status, judgement["verdict"], judgement["results"][0]["workload"]) == (0, "pass", "hepcnn")
    status, judgement = judged(tmp_path, held.replace("1 B/s", "999 TB/s"), capsys)
    assert (status, judgement["verdict"]) == (1, "fail")
    # a metric of runs has no value here, and is not judged as if it had
    status, judgement = judged(tmp_path, f'{held}\n[cdb."*"."*"]\nau = {{ at_least = "90 %" }}\n', capsys)
    assert (status, [finding["metric"] for finding in judgement["missing"]]) == (3, ["au"])
    assert main(["judge", str(tmp_path), "--limits", str(tmp_path / "none.toml")]) == 2


def test_metrics_that_do_not_follow_from_the_trials_are_refused(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = to_json(checkpoint.load(result))
    document["metrics"]["checkpoint_read_bandwidth"]["value"] *= 2
    document["digest"] = checkpoint.digest(document)
    (tmp_path / "result.json").write_text(json.dumps(document))
    status, judgement = judged(tmp_path, '[hepcnn."*"."*"]\ncheckpoint_fsyncs = { at_most = 99 }\n', capsys)
    assert status == 3
    assert [reason["rule"] for reason in judgement["results"][0]["reasons"]] == ["metrics"]
    document["seed"] += 1
    (tmp_path / "result.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="altered"):
        checkpoint.load(tmp_path)


def test_marks_are_made_again_when_judged(result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = to_json(checkpoint.load(result))
    assert content["marks"][:1] == ["FRACTION"]
    content |= {"marks": [], "fsync": False, "fsyncs_expected": 0}
    for trial in content["trials"]:
        trial["attestable"] = False
        for write in trial["writes"]:
            write |= {"fsyncs": 0, "rank_waited": write["rank_seconds"], "commit_seconds": 0.0, "commit_synced": 0.0}
    document = checkpoint.complete(convert(content | {"digest": ""}, Document))
    content = to_json(document) | {"marks": []}
    (tmp_path / "result.json").write_text(json.dumps(content | {"digest": checkpoint.digest(content)}))
    limits = '[hepcnn."*"."*"]\ncheckpoint_fsyncs = { at_most = 99 }\n'
    [told] = judged(tmp_path, limits, capsys)[1]["results"]
    assert {"FRACTION", "NO FSYNC", "CACHE NOT ATTESTED", "BYTES AWAITED"} == {*told["marks"]}
    assert (told["class"], told["capped"]) == ("EXPLORE", told["marks"])


def test_show_and_report_tell_it_again_and_trust_no_text(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "<script>alert(1)</script>\x1b[2J"
    document = altered(result, lambda c: (c["model"].update(title=hostile), c.update(folder=hostile)))
    result_file.save(document, tmp_path)
    capsys.readouterr()
    assert main(["show", str(tmp_path), "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert main(["show", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["digest"] == document.digest
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "<script>alert(1)" not in page
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    for dots in figures["rates"]["data"]:
        assert dots["x"] == [1, 2, None, 3, 4, None, 5, 6, None, 7, 8, None, 9, 10]  # no line from trial to trial
        assert [rate is None for rate in dots["y"]] == [place is None for place in dots["x"]]
    assert main(["report", str(tmp_path), "--limits", "x.toml"]) == 2


def test_export_has_every_metric_in_every_format(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def exported(*words: str) -> str:
        capsys.readouterr()
        assert main(["export", str(result), "--to", *words]) == 0
        return capsys.readouterr().out

    document = checkpoint.load(result)
    rows = exported("csv").splitlines()
    assert len(rows) == 1 + len(document.trials)
    assert {*CHECKPOINT_METRICS} <= {*rows[0].split(",")}
    table = json.loads(exported("pandas", "--table", "metrics"))["data"]
    assert {row["metric"]: row["value"] for row in table} == pytest.approx(
        {name: metric.value for name, metric in document.metrics.items()}
    )
    [benchmark] = json.loads(exported("pytest-benchmark"))["benchmarks"]
    assert benchmark["stats"]["data"] == [trial.seconds for trial in document.trials]
    suites = ElementTree.fromstring(exported("junit")).attrib
    assert suites == {"tests": "3", "failures": "0", "errors": "0", "time": suites["time"]}
    metrics_text = exported("openmetrics")
    assert metrics_text.endswith("# EOF\n")
    assert 'dlio_bench_checkpoint_write_bandwidth_bytes_per_second{workload="hepcnn"' in metrics_text
    assert main(["export", str(result), "--to", "csv", "--table", "steps"]) == 2


def test_compare_tells_what_changed_of_equal_work_alone(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def taking(seconds: float) -> str:
        def change(content: dict[str, Any]) -> None:
            for trial in content["trials"]:
                for write in trial["writes"]:
                    write["seconds"] = seconds

        folder = tmp_path / str(seconds)
        folder.mkdir()
        return str(result_file.save(altered(result, change), folder))

    old, new = taking(1.0), taking(4.0)
    capsys.readouterr()
    assert main(["compare", old, new, "--json", "--fail-if", "checkpoint_write_bandwidth<-99%"]) == 0
    [pair] = json.loads(capsys.readouterr().out)["pairs"]
    change = {metric["metric"]: metric["change"] for metric in pair["metrics"]}
    assert change["checkpoint_write_seconds"] == pytest.approx(3)
    assert change["checkpoint_write_bandwidth"] == pytest.approx(-0.75)
    assert change["checkpoint_read_seconds"] == 0
    assert main(["compare", old, new, "--fail-if", "checkpoint_write_mean_rate<-1%"]) == 1
    assert main(["compare", old, new, "--fail-if", "au<-1%"]) == 2
    capsys.readouterr()
    assert main(["compare", old, new, taking(4.1)]) == 0
    assert "hepcnn · sharded · 1 node × 1 rank · 3 runs" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    other = str(result_file.save(altered(result, lambda c: c.update(fsync=False)), tmp_path / "other"))
    assert main(["compare", old, other]) == 2
    assert "fsync (True and False)" in capsys.readouterr().err
    assert main(["compare", old, other, "--unequal"]) == 0


def test_a_dry_run_writes_nothing_and_tells_space_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoint", "llama3-8b-subset", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["ranks"], planned["files"], planned["checkpoints"], planned["fsyncs"]) == (8, 16, 10, 16 + 3)
    blocks = planned["required_bytes"] - 10 * planned["bytes"] - (1 << 20)  # whole ones of files, and their entries
    assert 0 <= blocks < 10 * 17 * os.statvfs(tmp_path).f_frsize
    assert planned["required_files"] == 10 * (16 + 2) + 1
    assert main(["checkpoint", "llama3-405b", "--dry-run", "--ranks-per-node", "2"]) == 0
    told = capsys.readouterr().out
    assert "1544 files" in told
    assert "required" in told
    assert not list(tmp_path.iterdir())


def test_what_small_files_take_is_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file system of 64 MiB with blocks of 64 KiB, and one with 100 inodes."""
    words = ("checkpoint", "llama3-405b", "--fraction", "0.00001%", "--folder", str(tmp_path))
    for files, told in ((10000, "67108864 bytes are available"), (100, "100 more files and folders are available")):
        system = SimpleNamespace(f_bavail=1024, f_blocks=1024, f_frsize=1 << 16, f_favail=files, f_files=files)
        monkeypatch.setattr(os, "statvfs", lambda _, system=system: system)
        assert main([*words]) == 4
        assert told in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ended", [0, 2])
def test_an_interruption_keeps_the_trials_that_had_ended(
    ended: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Rank.trial

    def trial(self: Rank, number: int, caller: Caller) -> dict[str, Any]:
        if number == ended:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, number, caller)

    def launched(_: object, job: Job, work: Path, *__: object, **___: object) -> dict[str, Any]:
        work.mkdir()
        return measure(job, Solo(), Caller(work))

    monkeypatch.setattr(Rank, "trial", trial)
    monkeypatch.setattr(command, "run_ranks", launched)  # a rank in this process, for the moment
    out = tmp_path / "out"
    assert main([*SMALL, "--folder", str(tmp_path), "--out", str(out)]) == 4
    told = capsys.readouterr().err.replace("\n", " ")
    assert "Go on with" not in told
    if not ended:
        assert "nothing is kept" in told
        assert not out.exists()
        return
    assert "2 of 5 trials had ended" in told
    document = checkpoint.load(out)
    assert (len(document.trials), document.class_) == (2, "EXPLORE")
    assert {"INTERRUPTED", "FEW TRIALS"} <= {*document.marks}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "result.json"]


def test_an_interval_needs_five_trials(result: Path) -> None:
    trials = checkpoint.load(result).trials
    assert all(metric.ci is not None for metric in metrics(trials).values())
    assert all(metric.ci is None for metric in metrics(trials[:4]).values())


PLAN = """
[system]
name = "x"
[dataset]
times_memory = 0.00001
[[run]]
workload = "cdb"
readers = ["naive"]
tiny = true
[[checkpoint]]
model = "hepcnn"
folder = "."
nodes = [1, 2]
{keys}
[limits.hepcnn.sharded."2x1"]
{metric} = {{ at_least = "1 kB/s" }}
"""


@pytest.mark.parametrize(
    ("keys", "metric", "told"),
    [
        ("", "checkpoint_read_bandwidth", ""),
        ("", "pfs_bandwidth", "Add a [[run]]"),
        ('layout = "single-file"', "checkpoint_read_bandwidth", "Add a [[checkpoint]]"),
        ("shards = 3", "checkpoint_read_bandwidth", "checkpoint[0]: --shards 3"),
        ('fraction = "1"', "checkpoint_read_bandwidth", "Did you mean 1%?"),
        ("ranks = 1", "checkpoint_read_bandwidth", "checkpoint[0].ranks"),
    ],
)
def test_a_plan_of_acceptance_has_checkpoints(
    keys: str, metric: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "plan.toml").write_text(PLAN.format(keys=keys, metric=metric))
    status = main(["accept", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out"), "--dry-run", "--json"])
    shown = capsys.readouterr()
    assert status == (2 if told else 0), shown.err
    assert told in shown.err.replace("\n", " ")
    if not told:
        parts = [part for part in json.loads(shown.out)["parts"] if part["kind"] == "checkpoint"]
        assert [part["name"] for part in parts] == ["hepcnn-sharded-1x1", "hepcnn-sharded-2x1"]
        assert parts[0]["command"][:5] == ["dlio-bench", "checkpoint", "hepcnn", "--folder", str(tmp_path)]
