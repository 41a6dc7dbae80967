"""`dlio-bench run --compute train` for real: networks on two ranks, and what is said when it cannot be."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.reports.numbers.metrics import PHASES
from dlio_bench.reports.traces import timeline
from tests.mpi.conftest import dlio, generated
from tests.results import load


def test_a_network_is_trained_and_its_checkpoints_predict_and_go_on(
    cache: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """In one test, as all of it needs the training on two ranks, with a checkpoint an epoch."""
    generated(tmp_path / "data", "hepcnnb", 7)
    done = dlio(
        cache, tmp_path, "run", "hepcnnb", "--tiny", "--data", "data", "--batch", "32", "--nodes", "2",
        "--compute", "train", "--reader", "prefetch", "--epochs", "2", "--seed", "5", "--warmup-trials", "0",
        "--checkpoint", "4", "--exchange", "horovod", "--exchange-timeout", "60s", "--out", "out", "--verbose",
        "--trace", "spans",
    )  # fmt: skip
    a_network_is_trained_in_the_timed_loop(tmp_path, done.stdout)
    a_checkpoint_predicts_what_its_training_validated(tmp_path, cache)
    a_run_goes_on_from_a_checkpoint_with_the_next_epoch(tmp_path, cache, refused)


def a_network_is_trained_in_the_timed_loop(folder: Path, printed: str) -> None:
    """A small one: tests/unit/training has a step of each (models_learn) and batch normalisation (train)."""
    result, steps = load(folder / "out" / "prefetch-2x1")
    compute, trial = result["compute"], result["trials"][0]
    assert (compute["mode"], compute["model"], compute["exchange"]) == ("train", "hepcnn", "horovod")
    assert compute["parameters"] > 100_000
    assert "EMULATED COMPUTE" not in result["marks"]
    assert f"gradients by {compute['exchange']}" in " ".join(printed.split())
    assert all(check["ok"] for check in result["checks"]), result["checks"]
    assert "exactly once" in {check["name"] for check in result["checks"]}

    assert steps["loss"].shape == (1, 2, 8)
    assert np.isfinite(steps["loss"]).all()
    # each rank has a batch of its own
    assert (steps["loss"][0, 0] != steps["loss"][0, 1]).any()
    training = trial["training"]
    assert training["loss"] == pytest.approx(steps["loss"][0].mean(axis=0))
    assert training["final_loss"] == training["loss"][-1]
    # every step all gradients go out in single precision
    assert training["allreduce_bytes"] == 8 * 4 * compute["parameters"]
    assert training["allreduce_seconds"] > 0
    assert [score["epoch"] for score in training["scores"]] == [0, 1]
    assert all(math.isfinite(score["auc"]) for score in training["scores"])
    assert [saved["step"] for saved in training["checkpoints"]] == [4, 8]

    spans = timeline.load(folder / "out" / "prefetch-2x1")
    saved, reduced = spans.part(spans.are_of("checkpoint write")), spans.part(spans.are_of("all-reduce"))
    assert saved.bytes.tolist() == [checkpoint["bytes"] for checkpoint in training["checkpoints"]]
    assert (saved.rank == 0).all()
    assert saved.step.tolist() == [3, 7]
    assert np.all(saved.end - saved.start <= steps["checkpoint"][0, 0, [3, 7]])
    for rank in range(2):
        of_rank = reduced.part(reduced.rank == rank)
        assert of_rank.step.tolist() == list(range(8))
        assert of_rank.bytes.sum() == training["allreduce_bytes"]

    spent = sum(steps[phase].sum(axis=2) for phase in PHASES) + steps["validation"].sum(axis=2)
    assert np.all(spent <= steps["loop"] * (1 + 1e-9))
    for rank in range(2):
        whole = spans.part(spans.are_of("Training Iteration") & (spans.rank == rank))
        assert np.all(whole.start[1:] >= whole.end[:-1])
        phases = sum(steps[phase][0, rank] for phase in PHASES)
        assert whole.end - whole.start == pytest.approx(phases, abs=1e-6)
    assert np.all(steps["convert"] > 0)
    assert np.all(steps["compute"] > 0)
    assert result["metrics"]["share_other"]["value"] == pytest.approx(float((1 - spent / steps["loop"]).mean()))
    # what overlaps the phases
    assert all(result["metrics"][f"{name}_seconds"]["value"] > 0 for name in ("read", "decode", "allreduce"))
    meanwhile = re.search(r"meanwhile reading .*?, decoding .*?; all-reduces [\d.]+ m?s", " ".join(printed.split()))
    assert meanwhile is not None


def a_checkpoint_predicts_what_its_training_validated(folder: Path, cache: Path) -> None:
    training, _ = load(folder / "out" / "prefetch-2x1")
    assert training["plan"]["steps"] == 8
    done = dlio(
        cache, folder, "run", "hepcnnb", "--tiny", "--data", "data", "--batch", "16", "--warmup-trials", "0",
        "--no-verify", "--compute", "infer", "--nodes", "1", "--resume", "out/prefetch-2x1/checkpoints/trial-0",
        "--out", "predicted",
    )  # fmt: skip
    assert "UNTRAINED" not in done.stdout
    result, _ = load(folder / "predicted" / "prefetch-1x1")
    assert all(check["ok"] for check in result["checks"]), result["checks"]
    assert "whole dataset" in {check["name"] for check in result["checks"]}
    assert result["compute"]["step"] == 8
    validated = training["trials"][0]["training"]["scores"][-1]
    held_out = {name: value for name, value in validated.items() if name != "epoch"}
    assert result["trials"][0]["inference"]["held_out"] == pytest.approx(held_out, rel=1e-4)


def a_run_goes_on_from_a_checkpoint_with_the_next_epoch(folder: Path, cache: Path, refused: Callable[..., str]) -> None:
    _, whole = load(folder / "out" / "prefetch-2x1")
    checkpoints = folder / "checkpoints"  # as of a run that ended after its first epoch
    shutil.copytree(folder / "out/prefetch-2x1/checkpoints/trial-0", checkpoints)
    (checkpoints / "step-00000008.npz").unlink()
    asked = (
        "run", "hepcnnb", "--tiny", "--data", str(folder / "data"), "--batch", "32", "--nodes", "2",
        "--compute", "train", "--validation", "none", "--no-verify", "--epochs", "1", "--warmup-trials", "0",
        "--resume", str(checkpoints), "--exchange", "mpi",
    )  # fmt: skip
    dlio(cache, folder, *asked, "--out", "rest")
    result, rest = load(folder / "rest" / "prefetch-2x1")
    assert (result["plan"]["steps"], result["compute"]["step"], result["plan"]["seed"]) == (4, 4, 5)
    # sums of gradients over ranks and threads may be rounded in another order
    assert rest["loss"] == pytest.approx(whole["loss"][:, :, 4:], rel=1e-3)
    assert "steps an epoch" in refused(*asked, "--steps", "1", "--out", "else")


def test_networks_that_learn_from_each_other_on_two_ranks_in_half_precision(cache: Path, tmp_path: Path) -> None:
    generated(tmp_path / "data", "hepcnnb", 7)
    done = dlio(
        cache, tmp_path, "run", "hepcnnb", "--tiny", "--data", "data", "--batch", "8", "--nodes", "2", "--steps", "3",
        "--compute", "train:hepgan", "--exchange", "horovod", "--fp16-gradients", "--warmup-trials", "0",
        "--no-verify", "--checkpoint", "3", "--out", "gan", "--verbose",
    )  # fmt: skip
    result, steps = load(tmp_path / "gan" / "prefetch-2x1")
    assert np.isfinite(steps["loss"]).all()
    training = result["trials"][0]["training"]
    asked = {"exchange": "horovod", "fp16": True, "lag": 0, "hierarchical": False}
    assert {name: result["compute"][name] for name in asked} == asked
    # in every step the gradients of both networks
    assert training["allreduce_bytes"] == 3 * 2 * result["compute"]["parameters"]
    assert [saved["step"] for saved in training["checkpoints"]] == [3]
    # images of both ranks beside all held-out ones, told once
    [made] = training["generated"]
    assert made["samples"] == result["dataset"]["validation"]["samples"]
    assert all(quantity["before"] and quantity["after"] for quantity in made["quantities"][:2])
    assert f"{made['samples']} made samples beside as many" in " ".join(done.stdout.split())
    assert "data:image/png;base64," in (tmp_path / "gan" / "report.html").read_text()


def test_networks_are_given_no_data_that_mean_nothing(tmp_path: Path, refused: Callable[..., str]) -> None:
    generated(tmp_path / "noise", "cdb", 32, "--fill", "random")
    for compute in ("train", "infer"):
        assert "--fill physical" in refused("run", "cdb", "--tiny", "--data", "noise", "--compute", compute)
    assert not (tmp_path / "dlio-results").exists()
