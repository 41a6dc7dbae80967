"""Runs that were stopped go on where they were, and nothing half-written is taken for whole."""

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests import processes
from tests.mpi.conftest import complaint, dlio, start
from tests.processes import PATIENCE, gone, pids_of, until
from tests.results import load

RUN = (
    "run", "cdb", "--tiny", "--nodes", "1,2", "--reader", "naive,prefetch", "--warmup-trials", "0", "--trials", "2",
    "--compute", "emulate:20ms", "--out", "out",
)  # fmt: skip


def ranks_of(out: Path) -> list[int]:
    return pids_of(f"measured.rank {(out / 'work').resolve()}")


def finished(out: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/result.json")}


def stop(cache: Path, folder: Path) -> str:
    """Stop the run by SIGTERM while the ranks of its second node count measure; what it said."""
    out = folder / "out"
    process = start(cache, folder, *RUN)
    until(lambda: ranks_of(out), process, "the second node count did not begin")
    ranks = ranks_of(out)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    gone(ranks)
    assert process.returncode == 4, err
    return err


def test_the_same_command_measures_only_what_is_missing(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    err = stop(cache, tmp_path)
    before = finished(out)
    assert sorted(before) == ["naive-1x1", "prefetch-1x1"]
    assert "Interrupted by SIGTERM: the ranks have ended." in err
    assert f"Go on with: dlio-bench {' '.join(RUN)}" in err
    assert (out / "report.html").exists()
    assert all("INTERRUPTED" in known["marks"] for known in before.values())

    other = dlio(cache, tmp_path, *RUN, "--epochs", "3", status=2)
    assert "epochs was not given and is 3" in complaint(other)
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
    assert "naive         2" in done.stdout  # one report of all
    assert "naive         1" in done.stdout
    assert not (out / "unfinished.json").exists()


def test_a_finished_run_is_told_again_by_the_same_command_alone(cache: Path, tmp_path: Path) -> None:
    """As a batch script with several runs gives it again, when it is submitted again for the last of them."""
    one = ("run", "cdb", "--tiny", "--reader", "prefetch,naive", "--compute", "none", "--out", "out", "--json")
    first = dlio(cache, tmp_path, *one)
    again = dlio(cache, tmp_path, *one)
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert "This run was finished before in out: nothing is measured." in again.stderr
    requeued = processes.dlio(tmp_path, *one, DLIO_BENCH_CACHE=str(cache), SLURM_RESTART_COUNT="1")
    assert json.loads(requeued.stdout) == json.loads(first.stdout)

    assert "not empty" in complaint(dlio(cache, tmp_path, *one, "--epochs", "3", status=2))
    record = tmp_path / "out" / "finished.json"
    facts = json.loads(record.read_text())
    record.write_text(json.dumps(facts | {"code_digest": "sha256:other"}))
    assert "not empty" in complaint(dlio(cache, tmp_path, *one, status=2))
    record.write_text(json.dumps(facts))
    (tmp_path / "out" / "naive-1x1" / "result.json").unlink()
    assert "not empty" in complaint(dlio(cache, tmp_path, *one, status=2))


def test_a_finished_run_is_not_told_again_for_other_data(cache: Path, tmp_path: Path) -> None:
    one = ("run", "cdb", "--tiny", "--data", "data", "--reader", "naive", "--compute", "none", "--out", "out")
    dlio(cache, tmp_path, "generate", "cdb", "--tiny", "--files", "4", "--out", "data")
    dlio(cache, tmp_path, *one)
    shutil.rmtree(tmp_path / "data")
    dlio(cache, tmp_path, "generate", "cdb", "--tiny", "--files", "6", "--out", "data")
    assert "begun on another dataset" in complaint(dlio(cache, tmp_path, *one, status=4))


def test_what_cannot_end_in_time_does_not_begin(cache: Path, tmp_path: Path) -> None:
    dlio(cache, tmp_path, *RUN[:2], "--tiny", "--compute", "none", "--reader", "naive", "--out", "first")  # the data
    err = complaint(dlio(cache, tmp_path, *RUN, "--walltime", "61s", status=4))
    assert "The time of this job does not suffice: cdb on 1 node takes about" in err
    assert "Nothing was finished. Go on with: dlio-bench run cdb" in err
    assert not (tmp_path / "out").exists()


def test_a_dataset_is_made_as_far_as_the_time_goes(cache: Path, tmp_path: Path) -> None:
    asked = ("generate", "cdb", "--tiny", "--files", "20000", "--out", "data")
    process = start(cache, tmp_path, *asked)
    until(lambda: list((tmp_path / "data").glob("*.h5")), process, "no file was made")
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
            process.wait(moments.uniform(0.5, 5))
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
