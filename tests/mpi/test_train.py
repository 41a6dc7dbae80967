"""`dlio-bench run --compute train` for real: networks on two ranks, and what is said when it cannot be."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.reports.metrics import PHASES
from tests.mpi.conftest import complaint, dlio
from tests.results import load

# a small one, and one with statistics of batches, which have no gradients; tests/unit/test_models.py has them all
NETWORKS = {"hepcnnb": ("hepcnn", "auc"), "imagenet": ("resnet50", "top_1")}


@pytest.mark.parametrize("workload", NETWORKS)
def test_a_network_is_trained_in_the_timed_loop(workload: str, cache: Path, tmp_path: Path) -> None:
    done = dlio(
        cache, tmp_path, "run", workload, "--tiny", "--nodes", "2", "--compute", "train", "--reader", "prefetch",
        "--steps", "8", "--warmup-trials", "0", "--exchange", "horovod", "--exchange-timeout", "60s", "--out", "out",
        "--verbose",
    )  # fmt: skip
    result, steps = load(tmp_path / "out" / "prefetch-2x1")
    network, metric = NETWORKS[workload]
    compute, trial = result["compute"], result["trials"][0]
    assert (compute["mode"], compute["model"], compute["exchange"]) == ("train", network, "horovod")
    assert compute["parameters"] > 100_000
    assert "EMULATED COMPUTE" not in result["marks"]
    assert f"gradients by {compute['exchange']}" in " ".join(done.stdout.split())
    assert all(check["ok"] for check in result["checks"]), result["checks"]
    assert "exactly once" in {check["name"] for check in result["checks"]}

    assert steps["loss"].shape == (1, 2, 8)
    assert np.isfinite(steps["loss"]).all()
    # each rank has a batch of its own
    assert (steps["loss"][0, 0] != steps["loss"][0, 1]).any()
    training = trial["training"]
    assert training["loss"] == pytest.approx(steps["loss"][0].mean(axis=0))
    assert training["final_loss"] == training["loss"][-1]
    # every step all gradients go out in single precision; not all parameters have gradients (statistics of batches)
    assert 0.9 < training["allreduce_bytes"] / (8 * 4 * compute["parameters"]) <= 1
    assert training["allreduce_seconds"] > 0
    assert [score["epoch"] for score in training["scores"]] == [0]
    assert math.isfinite(training["scores"][0][metric])

    spent = sum(steps[phase].sum(axis=2) for phase in PHASES) + steps["validation"].sum(axis=2)
    assert np.all(spent <= steps["loop"] * (1 + 1e-9))
    assert spent == pytest.approx(steps["loop"], rel=0.01)
    assert np.all(steps["convert"] > 0)
    assert np.all(steps["compute"] > 0)
    assert result["metrics"]["share_other"]["value"] < 0.01
    # what overlaps the phases
    assert all(result["metrics"][f"{name}_seconds"]["value"] > 0 for name in ("read", "decode", "allreduce"))
    meanwhile = re.search(r"meanwhile reading .*?, decoding .*?; all-reduces [\d.]+ m?s", " ".join(done.stdout.split()))
    assert meanwhile is not None


def test_a_step_late_in_half_precision_by_mpi(cache: Path, tmp_path: Path) -> None:
    dlio(
        cache, tmp_path, "run", "cosmoflow", "--tiny", "--nodes", "2", "--compute", "train",
        "--exchange", "mpi", "--gradient-lag", "1", "--fp16-gradients", "--steps", "4",
        "--warmup-trials", "0", "--validation", "none", "--out", "out",
    )  # fmt: skip
    result, _ = load(tmp_path / "out" / "prefetch-2x1")
    asked = {"exchange": "mpi", "fp16": True, "lag": 1, "hierarchical": False}
    assert {name: result["compute"][name] for name in asked} == asked
    training = result["trials"][0]["training"]
    assert 0.9 < training["allreduce_bytes"] / (4 * 2 * result["compute"]["parameters"]) <= 1
    assert training["scores"] == []


def test_data_that_mean_nothing_are_not_trained_on(cache: Path, tmp_path: Path) -> None:
    dlio(cache, tmp_path, "generate", "cdb", "--tiny", "--fill", "random", "--files", "32", "--out", "noise")
    done = dlio(cache, tmp_path, "run", "cdb", "--tiny", "--data", "noise", "--compute", "train", status=2)
    assert "--fill physical" in complaint(done)
    assert not (tmp_path / "dlio-results").exists()


def test_a_run_goes_on_from_a_checkpoint_with_the_next_epoch(cache: Path, tmp_path: Path) -> None:
    dlio(cache, tmp_path, "generate", "cosmoflow", "--tiny", "--files", "16", "--out", "data")

    def train(out: str, *more: str, status: int = 0) -> str:
        done = dlio(
            cache, tmp_path, "run", "cosmoflow", "--tiny", "--data", "data", "--batch", "2", "--nodes", "2",
            "--compute", "train", "--validation", "none", "--no-verify", "--out", out, *more, status=status,
        )  # fmt: skip
        return complaint(done) if status else done.stdout

    seeded = ("--seed", "5", "--warmup-trials", "0", "--checkpoint", "3")
    train("whole", "--epochs", "2", *seeded)
    train("part", "--epochs", "1", *seeded)
    checkpoints = "part/prefetch-2x1/checkpoints/trial-0"
    train("rest", "--epochs", "1", "--resume", checkpoints)
    (_, whole), (part, first), (rest, second) = (
        load(tmp_path / name / "prefetch-2x1") for name in ("whole", "part", "rest")
    )
    assert whole["loss"].shape[2] == 6
    assert part["plan"]["steps"] == rest["plan"]["steps"] == 3
    assert [one["step"] for one in part["trials"][0]["training"]["checkpoints"]] == [3]
    assert np.all(first["checkpoint"][0, 0, 2] > first["checkpoint"][0, 1].max())
    assert (rest["compute"]["step"], rest["plan"]["seed"]) == (3, 5)
    # sums of gradients over ranks and threads may be rounded in another order
    assert np.concatenate([first["loss"], second["loss"]], axis=2) == pytest.approx(whole["loss"], rel=1e-3)
    assert "steps an epoch" in train("else", "--epochs", "1", "--steps", "1", "--resume", checkpoints, status=2)
