"""A loader in a program of several ranks under mpirun: who gets what, and what becomes of a rank that fails."""

import json
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
from tests.processes import PATIENCE, descendants, has_tier, until
from tests.ranks import mpirun

PROGRAM = Path(__file__).with_name("library_rank.py")
KINDS = ("delivered", "lent", "differs", "raises")
Told = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return generate(layout("hepcnnb"), 2, tmp_path_factory.mktemp("hep"), seed=5, workers=1)


def program(kinds: str, dataset: Dataset, out: Path, *options: str) -> "subprocess.Popen[str]":
    """The program on two ranks, with options of mpirun: by `continuous` the others live when a rank has died."""
    (launcher, *argv), env = mpirun(2, (sys.executable, str(PROGRAM), kinds, str(dataset.folder), str(out)))
    return subprocess.Popen(
        [launcher, *options, *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture(scope="module")
def told(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What both ranks tell of each kind of loader, one after the other in one program."""
    out = tmp_path_factory.mktemp("out")
    process = program(",".join(KINDS), dataset, out)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert output == ""
    ranks = [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(2)]
    return {kind: [rank[kind] for rank in ranks] for kind in KINDS}


def planned(dataset: Dataset, ranks: int, rank: int, epoch: int) -> list[list[int]]:
    shape = Shape(dataset.training_samples, ranks, BATCH)
    ids: list[list[int]] = find_order("global-shuffle")(shape, rank, epoch, 5).tolist()
    return ids


def test_ranks_share_the_samples_and_go_on_together(dataset: Dataset, told: Told) -> None:
    for rank, of_rank in enumerate(told["delivered"]):
        assert of_rank["ranks"] == 2
        assert of_rank["epochs"] == [planned(dataset, 2, rank, epoch) for epoch in range(EPOCHS)]
        assert of_rank["rest"] == of_rank["epochs"][1][2:]
        assert of_rank["threads"] == []


def test_a_communicator_of_the_program_decides_who_shares(dataset: Dataset, told: Told) -> None:
    for of_rank in told["lent"]:
        assert of_rank["ids"] == planned(dataset, 1, 0, 0)


def test_ranks_that_ask_for_different_things_are_told(told: Told) -> None:
    for of_rank in told["differs"]:
        assert of_rank["error"] == "UsageError"
        assert "Rank 1" in of_rank["message"]
        assert "seed (6)" in of_rank["message"]


def test_an_error_of_a_rank_ends_the_loops_of_all(told: Told) -> None:
    other, failed = told["raises"]
    assert (failed["error"], failed["message"]) == ("DataError", "This rank has seen enough.")
    assert other["error"] == "EnvironmentFailure"
    assert other["message"].startswith("Rank 1 on ")
    assert other["message"].endswith("This rank has seen enough.")


def test_a_rank_that_dies_is_waited_for_so_long_and_leaves_nothing_behind(dataset: Dataset, tmp_path: Path) -> None:
    process = program("dies", dataset, tmp_path, "--runtime-options", "continuous")
    try:
        until((tmp_path / "0.json").exists, process)
        ranks = descendants(process.pid)
        until(lambda: not any(map(has_tier, ranks)), missing="a dead rank's memory is left")  # a slow one dies later
    finally:
        process.terminate()  # MPI_Finalize may wait for the dead rank for ever: mpirun takes its ranks along
        output = process.communicate(timeout=PATIENCE)[0]
    told = json.loads((tmp_path / "0.json").read_text())["dies"]
    assert told["error"] == "Stalled", output
    assert "has waited for 3 seconds" in told["message"]
