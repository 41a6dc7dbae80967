"""Several models on one stream, and the same models each reading for itself, behind an emulated file system."""

from pathlib import Path

import numpy as np
import pytest

from dlio_bench.reports.document import result
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers import models
from tests import processes

STREAMED = ("--tiny", "--compute", "none", "--trials", "1", "--warmup-trials", "0", "--out", "out")


def measured(folder: Path, cache: Path, reader: str, *words: str) -> Result:
    processes.dlio(folder, "run", "imagenet", "--reader", reader, *words, *STREAMED, DLIO_BENCH_CACHE=str(cache))
    return result.load(next((folder / "out").glob(f"{reader.partition(',')[0]}-*")))[0]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_models_on_one_stream_read_the_dataset_once_and_separate_ones_each(tmp_path: Path, cache: Path) -> None:
    emulated = ("--models", "3", "--emulate-pfs", "bandwidth=200MB/s")
    of_stream = measured(tmp_path, cache, "stream,shuffled", *emulated)
    separate, steps = result.load(next((tmp_path / "out").glob("shuffled-*")))
    assert [models.dataset_reads(each) for each in (of_stream, separate)] == pytest.approx([1.0, 3.0], abs=0.1)
    for each in (of_stream, separate):
        assert all(check.ok for check in each.checks)
        assert len(each.models) == len(each.plan.models) == each.plan.ranks == 3
    assert steps["stall"].shape[1] == 3
    assert "read 3.0 times" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("mode", ["round-robin", "all"])
def test_a_stream_that_all_share_brings_every_model_its_plan(mode: str, tmp_path: Path, cache: Path) -> None:
    known = measured(tmp_path, cache, "stream", "--stream", mode, "--models", "2", "--producers", "2")
    assert all(check.ok for check in known.checks)
    assert models.dataset_reads(known) == pytest.approx(1.0, abs=0.1)


def test_every_model_of_several_ranks_gets_every_sample(tmp_path: Path, cache: Path) -> None:
    known = measured(tmp_path, cache, "stream", "--models", "2", "--ranks-per-node", "2", "--producers", "2")
    assert all(check.ok for check in known.checks)
    [once] = [check for check in known.checks if check.name == "exactly once"]
    assert "in each of 2 models" in once.expected
    assert [model.ranks for model in known.models] == [[0, 1], [2, 3]]
    trial = known.measured_trials[0]
    assert trial.samples == 2 * known.plan.samples_per_epoch * known.plan.epochs
    assert np.sum(trial.rank_bytes[:2]) == np.sum(trial.rank_bytes[2:])
