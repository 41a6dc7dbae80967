"""`--compute infer` and `--shard job` for real: every sample once on one rank, and every sample on every rank.

What a checkpoint predicts is in test_train.py, with the training that leaves it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mpi.conftest import dlio, generated
from tests.results import load


def checked(result: dict[str, Any]) -> set[str]:
    assert all(check["ok"] for check in result["checks"]), result["checks"]
    return {check["name"] for check in result["checks"]}


def test_a_network_predicts_every_sample_of_every_split_once(cache: Path, tmp_path: Path) -> None:
    samples, batch = 17, 4  # neither ranks nor steps divide them
    generated(tmp_path / "data", "cosmoflow", samples)
    readers = ("naive", "tfdata", "cooperative", "staged")
    done = dlio(
        cache, tmp_path, "run", "cosmoflow", "--tiny", "--data", "data", "--nodes", "2", "--compute", "infer",
        "--reader", ",".join(readers), "--batch", str(batch), "--warmup-trials", "0", "--out", "out", "--verbose",
    )  # fmt: skip
    assert "UNTRAINED NETWORK" in done.stdout
    scores, others = [], []
    for reader in readers:
        result, steps = load(tmp_path / "out" / f"{reader}-2x1")
        assert {"whole dataset", "exactly once", "content"} <= checked(result)
        compute, plan, trial = result["compute"], result["plan"], result["trials"][0]
        assert (compute["mode"], compute["model"], compute["resume"]) == ("infer", "cosmoflow", None)
        assert (plan["epochs"], plan["last"], plan["sync"], plan["dropped_samples"]) == (1, "keep", "none", 0)
        assert result["dataset"]["samples"] == plan["samples_per_epoch"] == trial["samples"] == samples
        assert trial["inference"]["samples"] == samples
        scores.append(trial["inference"])
        assert np.all(steps["compute"].sum(axis=2) > 0)
        assert "loss" not in steps
        others.append(result["metrics"]["share_other"]["value"])
    assert min(others) < 0.05  # whoever has the processor meanwhile, not in every run
    for other in scores[1:]:  # whichever rank predicts a sample, and beside which others
        assert other["scores"] == pytest.approx(scores[0]["scores"], rel=1e-4, abs=1e-6)
        # R2 of an untrained network is a small difference of large sums, which keeps fewer digits
        assert other["held_out"] == pytest.approx(scores[0]["held_out"], rel=1e-4, abs=1e-5)
    assert "mae" in scores[0]["scores"]
    assert "<h3>Inference</h3>" in (tmp_path / "out" / "report.html").read_text()
    assert f"{samples} predictions of {samples} samples on 2 ranks" in " ".join(done.stdout.split())


def test_ranks_of_one_model_all_read_everything_and_a_cooperative_reader_fetches_it_once(
    cache: Path, tmp_path: Path
) -> None:
    readers = ("naive", "double-buffer", "cooperative")
    done = dlio(
        cache, tmp_path, "run", "hepcnnb", "--tiny", "--nodes", "2", "--ranks-per-node", "2", "--shard", "job",
        "--reader", ",".join(readers), "--emulate-pfs", "bandwidth=200MB/s", "--epochs", "2", "--warmup-trials", "0",
        "--validation", "2", "--out", "out", "--verbose",
    )  # fmt: skip
    assert "all 4 ranks read the whole dataset in one order" in " ".join(done.stdout.split())
    assert "<h3>Who reads what</h3>" in (tmp_path / "out" / "report.html").read_text()
    requested = []
    for reader in readers:
        result, _ = load(tmp_path / "out" / f"{reader}-2x2")
        assert {"one order", "exactly once", "validation", "bytes as planned"} <= checked(result)
        plan, trial = result["plan"], result["trials"][0]
        samples, held_out = plan["samples_per_epoch"], plan["validation"]["samples"]
        assert samples == result["dataset"]["samples"]
        assert (plan["copies"], trial["samples"]) == (4, 2 * samples)
        assert trial["bytes_useful"] == pytest.approx(4 * result["dataset"]["view_bytes"] * (2 * samples + held_out))
        assert trial["bytes_device"] <= 1.1 * trial["bytes_requested"]
        assert (trial["bytes_remote"] > 0) == (reader == "cooperative")
        requested.append(trial["bytes_requested"])
    # samples are of one size; four ranks ask for them in each of two epochs and in a pass, or one of them does, once
    sample = requested[0] / (4 * (2 * samples + held_out))
    assert requested == [requested[0]] * 2 + [pytest.approx(sample * (samples + held_out))]


def test_stages_of_a_pipeline_read_every_field_once(cache: Path, tmp_path: Path) -> None:
    readers = ("shuffled", "double-buffer")
    done = dlio(
        cache, tmp_path, "run", "hepcnnb", "--tiny", "--nodes", "3", "--shard", "pipeline",
        "--reader", ",".join(readers), "--epochs", "2", "--trials", "1", "--warmup-trials", "0", "--compute", "none",
        "--validation", "2", "--out", "out", "--verbose",
    )  # fmt: skip
    assert "of 3 ranks, the stages of a pipeline, the first reads every sample" in " ".join(done.stdout.split())
    for reader in readers:
        result, _ = load(tmp_path / "out" / f"{reader}-3x1")
        assert {"one order", "exactly once", "validation", "bytes as planned"} <= checked(result)
        plan, trial = result["plan"], result["trials"][0]
        samples, held_out = plan["samples_per_epoch"], plan["validation"]["samples"]
        assert (plan["shard"], samples) == ("pipeline", result["dataset"]["samples"])
        # each field of each sample once, whichever rank reads it
        assert trial["bytes_useful"] == pytest.approx(result["dataset"]["view_bytes"] * (2 * samples + held_out))
        assert trial["bytes_requested"] == trial["bytes_useful"]  # stored as delivered
        [once] = [check for check in result["checks"] if check["name"] == "exactly once"]
        assert "once in each field" in once["expected"]


def test_training_on_the_same_batches_is_that_of_one_rank(cache: Path, tmp_path: Path) -> None:
    common = (
        "run", "cosmoflow", "--tiny", "--compute", "train", "--steps", "4", "--batch", "2", "--seed", "3",
        "--warmup-trials", "0", "--validation", "none", "--no-verify",
    )  # fmt: skip
    generated(tmp_path / "data", "cosmoflow", 16)
    dlio(cache, tmp_path, *common, "--data", "data", "--nodes", "1", "--out", "one")
    dlio(cache, tmp_path, *common, "--data", "data", "--nodes", "2", "--shard", "job", "--out", "two")
    (_, alone), (_, together) = (load(tmp_path / name) for name in ("one/prefetch-1x1", "two/prefetch-2x1"))
    for rank in (0, 1):
        assert together["loss"][0, rank] == pytest.approx(alone["loss"][0, 0], rel=1e-4)
