"""Runs that were stopped go on where they were, and nothing half-written is taken for whole."""

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness import cli
from tests import processes
from tests.datasets import made
from tests.mpi.conftest import Hold, complaint, dlio, standing, start
from tests.processes import PATIENCE, ending, gone, until
from tests.results import load

RUN = (
    "run", "cdb", "--tiny", "--nodes", "1,2", "--reader", "naive,prefetch", "--warmup-trials", "0", "--trials", "2",
    "--compute", "none", "--out", "out",
)  # fmt: skip


def finished(out: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/result.json")}


def stop(hold: Hold, cache: Path, folder: Path) -> str:
    """Stop the run by SIGTERM while it starts the ranks of its second node count; what it said."""
    process, launcher = hold.start(cache, folder, *RUN)
    with ending(process):
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE)
    gone([launcher])
    assert process.returncode == 4, err
    return err


def test_the_same_command_measures_only_what_is_missing(
    hold: Hold, cache: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    out = tmp_path / "out"
    err = stop(hold, cache, tmp_path)
    before = finished(out)
    assert sorted(before) == ["naive-1x1", "prefetch-1x1"]
    assert "Interrupted by SIGTERM: the ranks have ended." in err
    assert f"Go on with: dlio-bench {' '.join(RUN)}" in err
    assert (out / "report.html").exists()
    assert all("INTERRUPTED" in known["marks"] for known in before.values())

    assert "epochs was not given and is 3" in refused(*RUN, "--epochs", "3")
    assert finished(out) == before

    done = dlio(cache, tmp_path, *RUN)
    assert "--nodes 1 was finished before" in done.stderr
    after = finished(out)
    assert sorted(after) == ["naive-1x1", "naive-2x1", "prefetch-1x1", "prefetch-2x1"]
    assert not any("INTERRUPTED" in known["marks"] for known in after.values())
    for name, known in before.items():
        assert after[name]["trials"] == known["trials"]
        assert after[name]["created"] == known["created"]
    assert len({known["plan"]["seed"] for known in after.values()}) == 1
    assert len({known["dataset"]["digest"] for known in after.values()}) == 1
    assert {known["plan"]["nodes"] for known in after.values() if "VIRTUAL NODES" in known["marks"]} == {2}
    assert "naive         2" in done.stdout  # one report of all
    assert "naive         1" in done.stdout
    assert not (out / "unfinished.json").exists()


def test_a_finished_run_is_told_again_by_the_same_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    """As a batch script with several runs gives it again, when it is submitted again for the last of them."""
    one = ("run", "cdb", "--tiny", "--reader", "prefetch,naive", "--compute", "none", "--out", "out", "--json")
    first = processes.dlio(tmp_path, *one, DLIO_BENCH_CACHE=str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for restarts in ("0", "1"):
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)  # requeued
        assert cli.main(one) == 0
        again = capsys.readouterr()
        assert json.loads(again.out) == json.loads(first.stdout)
        assert "This run was finished before in out: nothing is measured." in again.err

    assert "not empty" in refused(*one, "--epochs", "3")
    record = tmp_path / "out" / "finished.json"
    facts = json.loads(record.read_text())
    record.write_text(json.dumps(facts | {"code_digest": "sha256:other"}))
    assert "not empty" in refused(*one)
    record.write_text(json.dumps(facts))
    (tmp_path / "out" / "naive-1x1" / "result.json").unlink()
    assert "not empty" in refused(*one)


def test_a_finished_run_is_not_told_again_for_other_data(
    cache: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    one = ("run", "cdb", "--tiny", "--data", "data", "--reader", "naive", "--compute", "none", "--out", "out")
    made(tmp_path / "data", "cdb", 4)
    dlio(cache, tmp_path, *one)
    shutil.rmtree(tmp_path / "data")
    made(tmp_path / "data", "cdb", 6)
    assert "begun on another dataset" in refused(*one, status=4)


def test_what_cannot_end_in_time_does_not_begin(cache: Path, tmp_path: Path) -> None:
    long = ("--compute", "emulate:20ms", "--trials", "2000", "--walltime", "10min")
    err = complaint(dlio(cache, tmp_path, *RUN, *long, status=4))
    assert "The time of this job does not suffice: cdb on 1 node takes about" in err
    assert "Nothing was finished. Go on with: dlio-bench run cdb" in err
    assert not (tmp_path / "out").exists()


def test_a_dataset_is_made_as_far_as_the_time_goes(cache: Path, tmp_path: Path) -> None:
    standing(tmp_path / "data", "cosmoflow", 4, at=3, fill="physical")
    asked = ("generate", "cosmoflow", "--tiny", "--files", "4", "--out", "data")
    with ending(start(cache, tmp_path, *asked)) as process:
        until(lambda: list((tmp_path / "data").rglob("*.tfrecord")), process, "no file was made")
        process.send_signal(signal.SIGALRM)  # as the timer of --walltime does
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert "Interrupted by the end of this job's time" in err
    assert f"Go on with: dlio-bench {' '.join(asked)}" in err


def test_a_run_killed_at_any_moment_goes_on(cache: Path, tmp_path: Path) -> None:
    """At whatever moment: the run ends in the same results as one that was left alone."""
    out, moments = tmp_path / "out", random.Random(7)
    for _ in range(3):
        process = start(cache, tmp_path, *RUN)
        try:
            process.wait(moments.uniform(0.3, 3.5))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            time.sleep(moments.uniform(0, 0.3))  # ranks may be at work yet
            for path in out.glob("*/result.json"):
                load(path.parent)  # whole, with its steps
        else:
            break
    if process.returncode:
        dlio(cache, tmp_path, *RUN)
    after = finished(out)
    assert sorted(after) == ["naive-1x1", "naive-2x1", "prefetch-1x1", "prefetch-2x1"]
    assert not any({"INTERRUPTED", "CONTENT NOT VERIFIED"} & set(known["marks"]) for known in after.values())
    assert {path.name for path in out.iterdir()} == {*after, "report.html", "status.jsonl", "finished.json"}
