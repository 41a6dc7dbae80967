"""`calibrate --compute` as a user meets it: a profile of a real network, and a run that takes its step times."""

import json
import os
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.profile import MEASURED, load
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.process import launch
from dlio_bench.harness.commands.calibration.compute import process
from dlio_bench.harness.commands.calibration.compute.process import LEAST, MOST, ComputeJob, are_enough, rows_of
from tests.processes import dlio

pytestmark = pytest.mark.slow


def test_a_run_waits_as_long_as_the_real_network_took(tmp_path: Path) -> None:
    calibrate = ("calibrate", "--compute", "hepcnnb", "--tiny", "--batch", "4,2", "--steps", "5", "--threads", "1")
    shown = dlio(tmp_path, *calibrate, "--out", "mine.toml").stdout
    assert "hepcnn on samples of 16 x 16 x 3 float32" in shown
    assert "--compute emulate:@mine.toml" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    profile = load(tmp_path / "mine.toml")
    assert (profile.workload, profile.variants, profile.model) == ("hepcnnb", ("224",), "hepcnn")
    assert (profile.kind, profile.tiny, profile.shape) == (MEASURED, True, (16, 16, 3))
    assert profile.by["threads"] == "1"
    assert [(row.batch, row.steps) for row in profile.rows] == [(2, 5), (4, 5)]
    assert all(row.spread and row.spread[0] <= row.seconds <= row.spread[1] for row in profile.rows)
    assert all(row.forward_seconds and row.forward_seconds > 0 for row in profile.rows)

    compute = ("--compute", "emulate:@mine.toml", "--no-verify", "--out", "out", "--json")
    run = ("run", "hepcnnb", "--tiny", "--batch", "3", "--steps", "4", "--cache-dir", "cache")
    with chdir(tmp_path), redirect_stdout(StringIO()) as told:
        assert main([*run, *compute]) == 0
    [result] = json.loads(told.getvalue())
    found = result["compute"]
    assert found["asked_step_seconds"] == pytest.approx(sum(row.seconds for row in profile.rows) / 2)
    assert (found["mode"], found["kind"], found["device"]) == ("emulate", "measured", profile.device)
    assert found["source"].startswith("linear between ")
    assert found["profile"] == {
        "name": "mine.toml", "digest": profile.digest, "model": "hepcnn", "tiny": True, "batches": [2, 4],
        "by": dict(profile.by),
    }  # fmt: skip
    assert "ESTIMATED STEP TIME" not in result["marks"]
    with np.load(tmp_path / "out" / "prefetch-1x1" / "steps.npz") as steps:
        assert np.all(steps["compute"] >= found["asked_step_seconds"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"step time of hepcnn measured on {profile.device}" in page


def test_without_tensorflow_it_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert main(["calibrate", "--compute", "cdb"]) == 4
    assert "--compute cdb needs TensorFlow" in capsys.readouterr().err


def test_a_process_that_memory_runs_out_for_is_told_with_what_helps(tmp_path: Path) -> None:
    killed = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    with pytest.raises(EnvironmentFailure, match=r"ended by SIGKILL: nothing was measured\. The kernel does so when"):
        launch(killed, os.environ, tmp_path, lambda _: None)


def test_a_batch_that_does_not_fit_is_named_with_those_that_do() -> None:
    def row(size: int) -> dict[str, int]:
        if size > most:
            raise EnvironmentFailure("It ran out of memory.")
        return {"batch": size}

    job, most = ComputeJob("cdb", "cori", "tiramisu", True, (1, 2, 4), 5, 1), 2
    with pytest.raises(EnvironmentFailure, match=r"With a batch of 4: It ran out of memory\. .* --batch 1,2\."):
        rows_of(job, row)
    most = 0
    with pytest.raises(EnvironmentFailure, match=r"With a batch of 1: It ran out of memory\.$"):
        rows_of(job, row)
    most = 4
    assert rows_of(job, row) == [{"batch": 1}, {"batch": 2}, {"batch": 4}]


@pytest.mark.parametrize("name", ["hepcnnb", "cdb", "cosmoflow", "imagenet"])
def test_batches_are_made_of_few_samples_of_the_workloads_own(name: str, tmp_path: Path) -> None:
    workload = find(name)
    dataset = process.make(workload.variants[workload.default_variant](True, PHYSICAL), 3, tmp_path / "data")
    assert len(dataset.training_files) == 1
    own = process.decode_samples(workload, dataset)
    assert 1 <= len(own) <= 3
    assert workload.decode is not None
    assert own.shape[1] == workload.decode(dataset).sample_bytes
    batch = process.batch_of(own, 5)
    for place in range(5):
        assert np.array_equal(batch.sample(place), own[place % len(own)])


@pytest.mark.parametrize(
    ("found", "steps", "done"),
    [
        ([1.0] * 4, 0, False),
        ([1.0] * LEAST, 0, True),
        ([0.001] * LEAST, 0, False),
        ([0.001] * MOST, 0, True),
        ([0.001] * 7, 8, False),
        ([9.0] * 7, 8, False),
        ([9.0] * 8, 8, True),
    ],
)
def test_a_median_has_enough_steps(found: list[float], steps: int, done: bool) -> None:
    assert are_enough(found, steps) == done
