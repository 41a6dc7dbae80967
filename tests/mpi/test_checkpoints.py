"""`dlio-bench checkpoint` with real ranks: four of two virtual nodes, a rank that is killed, disks that are full."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dlio_bench.harness.commands.checkpoints import sets
from dlio_bench.reports.checkpoint import document as checkpoint
from dlio_bench.reports.document.result import load as load_result
from dlio_bench.reports.traces import timeline
from tests.mpi.conftest import Mount, complaint, dlio, start
from tests.needs import require
from tests.processes import DLIO, PATIENCE, descendants, gone, ranks_of, until

RANKS = ("--nodes", "2", "--ranks-per-node", "2")
SMALL = ("checkpoint", "llama3-8b", "--fraction", "0.001%", "--trials", "1", *RANKS, "--out", "out", "--json")


def test_four_ranks_write_and_read_and_strace_sees_as_many_fsyncs(cache: Path, tmp_path: Path) -> None:
    require("strace")
    traces = tmp_path / "traces"
    traces.mkdir()
    done = subprocess.run(
        ["strace", "-ff", "-y", "-e", "trace=fsync,rename", "-o", traces / "of", *DLIO, *SMALL],
        cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(cache)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document = checkpoint.load(tmp_path / "out")
    assert json.loads(done.stdout)["digest"] == document.digest
    assert (document.class_, document.shift, document.files, document.scale) == ("EXPLORE", 2, 8, "2x2")
    assert {"VIRTUAL NODES", "FRACTION", "FEW TRIALS"} <= {*document.marks}
    assert document.bytes == pytest.approx(112.42e9 * 1e-5, rel=1e-2)
    [trial] = document.trials
    assert trial.compared_bytes == 2 * document.bytes
    told = [write.fsyncs for write in trial.writes]
    assert told == [8 + sets.OF_COMMIT] * 2
    seen = [
        line
        for path in traces.iterdir()
        for line in path.read_text(errors="replace").splitlines()
        if re.match(r"fsync\(\d+<[^>]*dlio-bench-checkpoint-", line)
    ]
    assert len(seen) == sum(told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "traces"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "result.json"]


def test_a_rank_that_is_killed_in_mid_write_ends_the_command_and_nothing_is_left(cache: Path, tmp_path: Path) -> None:
    process = start(
        cache, tmp_path, "checkpoint", "llama3-8b", "--fraction", "0.1%", "--trials", "1000", "--ranks-per-node", "2",
        "--out", "out",
    )  # fmt: skip
    until(lambda: list(tmp_path.glob("dlio-bench-checkpoint-*/*.part/*.pt")), process, "nothing is written")
    started = descendants(process.pid)
    os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, out + err
    assert "rank" in complaint(subprocess.CompletedProcess([], 4, out, err))
    gone(started)
    assert not list(tmp_path.glob("dlio-bench-checkpoint-*"))


def test_disks_that_are_too_small_are_told_before(tmp_path: Path, mount: Mount, refused: Callable[..., str]) -> None:
    small = mount("size=1m")
    said = refused(*SMALL, "--folder", str(small), status=4)
    needed = int(re.findall(r"(\d+) are required", said)[0])
    available, missing = (
        int(re.findall(rf"(\d+) (?:bytes )?are {word}", said)[0]) for word in ("available", "missing")
    )
    assert missing == needed - available > 0
    assert not list(small.iterdir())
    few = mount("size=64m,nr_inodes=6")  # the bytes are there, and the fifth file is not
    assert "5 more files and folders are available" in refused(*SMALL, "--folder", str(few), status=4)
    assert not list(few.iterdir())
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_run_writes_checkpoints_beside_its_input_and_tells_them_from_stall(cache: Path, tmp_path: Path) -> None:
    load = tmp_path / "load"
    load.mkdir()
    words = ("run", "cdb", "--tiny", "--ranks-per-node", "2", "--compute", "emulate:1ms", "--reader", "naive")
    words += ("--steps", "5", "--epochs", "1", "--trials", "2", "--warmup-trials", "0", "--trace", "spans")
    words += ("--checkpoint-load", "llama3-8b", "--checkpoint-load-every", "2", "--checkpoint-load-fraction", "0.001%")
    dlio(cache, tmp_path, *words, "--checkpoint-load-dir", "load", "--out", "out")
    [file] = (tmp_path / "out").rglob("result.json")
    result, steps = load_result(file)
    assert result.class_ == "EXPLORE"
    for trial in result.measured_trials:
        written = trial.checkpoint_load
        assert written is not None
        assert len(written.seconds) == 2
        assert written.fsyncs == 2 * 2 * 2  # checkpoints, ranks, files of each
        assert written.compared_bytes == written.bytes == pytest.approx(112.42e9 * 1e-5, rel=1e-2)
        told = steps["checkpoint"][trial.trial].max(axis=0)  # the phase, [ranks, steps], encloses what was written
        assert (told[[1, 3]] >= written.seconds).all()
    assert result.value("share_checkpoint") > 0
    assert result.value("stall_share") + result.value("share_checkpoint") < 1
    assert not list(load.iterdir())
    spans = timeline.load(file.parent)
    assert len(spans.part(spans.are_of("checkpoint write")).start) == 2 * 2 * 2
    assert "checkpoints of" in dlio(cache, tmp_path, "show", "out").stdout.replace("\n", " ")
