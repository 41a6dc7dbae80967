"""A loader in a program of several ranks under mpirun: who gets what, and what becomes of a rank that fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.harness.plan.orders import Shape, find_order
from tests.datasets import layout
from tests.mpi.library_rank import BATCH, EPOCHS
from tests.processes import PATIENCE, until
from tests.ranks import mpirun

PROGRAM = Path(__file__).with_name("library_rank.py")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    # as nobody else has it now
    return generate(layout("hepcnnb"), 2, tmp_path_factory.mktemp("hep"), seed=os.getpid(), workers=1)


def left(dataset: Dataset) -> list[Path]:
    """What is in shared memory for the dataset."""
    return list(Path("/dev/shm").glob(f"*{dataset.digest[7:19]}*"))


def program(kind: str, dataset: Dataset, out: Path, *options: str) -> "subprocess.Popen[str]":
    """The program on two ranks, with options of mpirun: by `continuous` the others live when a rank has died."""
    (launcher, *argv), env = mpirun(2, (sys.executable, str(PROGRAM), kind, str(dataset.folder), str(out)))
    return subprocess.Popen(
        [launcher, *options, *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(kind: str, dataset: Dataset, out: Path) -> list[dict[str, Any]]:
    """What both ranks tell."""
    process = program(kind, dataset, out)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert output == ""
    return [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(2)]


def planned(dataset: Dataset, ranks: int, rank: int, epoch: int) -> list[list[int]]:
    shape = Shape(dataset.training_samples, ranks, BATCH)
    ids: list[list[int]] = find_order("global-shuffle")(shape, rank, epoch, 5).tolist()
    return ids


def test_ranks_share_the_samples_and_go_on_together(dataset: Dataset, tmp_path: Path) -> None:
    for rank, told in enumerate(run("delivered", dataset, tmp_path)):
        assert told["ranks"] == 2
        assert told["epochs"] == [planned(dataset, 2, rank, epoch) for epoch in range(EPOCHS)]
        assert told["rest"] == told["epochs"][1][2:]
        assert told["threads"] == []
    assert left(dataset) == []


def test_a_communicator_of_the_program_decides_who_shares(dataset: Dataset, tmp_path: Path) -> None:
    for told in run("lent", dataset, tmp_path):
        assert told["ids"] == planned(dataset, 1, 0, 0)


def test_an_error_of_a_rank_ends_the_loops_of_all(dataset: Dataset, tmp_path: Path) -> None:
    other, failed = run("raises", dataset, tmp_path)
    assert (failed["error"], failed["message"]) == ("DataError", "This rank has seen enough.")
    assert other["error"] == "EnvironmentFailure"
    assert other["message"].startswith("Rank 1 on ")
    assert other["message"].endswith("This rank has seen enough.")


def test_ranks_that_ask_for_different_things_are_told(dataset: Dataset, tmp_path: Path) -> None:
    for told in run("differs", dataset, tmp_path):
        assert told["error"] == "UsageError"
        assert "Rank 1" in told["message"]
        assert "seed (6)" in told["message"]


def test_a_rank_that_dies_is_waited_for_so_long_and_leaves_nothing_behind(dataset: Dataset, tmp_path: Path) -> None:
    process = program("dies", dataset, tmp_path, "--runtime-options", "continuous")
    try:
        until((tmp_path / "0.json").exists, process)
        assert left(dataset) == []
    finally:
        process.terminate()  # MPI_Finalize may wait for the dead rank for ever: mpirun takes its ranks along
        output = process.communicate(timeout=PATIENCE)[0]
    told = json.loads((tmp_path / "0.json").read_text())
    assert told["error"] == "Stalled", output
    assert "has waited for 3 seconds" in told["message"]
