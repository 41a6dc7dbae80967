"""Staging jobs that end badly: a tier that is full, a rank that is killed. One message, and nothing left behind."""

import sys
from pathlib import Path

import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, EnvironmentFailure
from dlio_bench.harness.cluster.process import launch
from dlio_bench.harness.storage import tier
from tests.datasets import made
from tests.mpi.conftest import Mount
from tests.processes import pids_of, until
from tests.ranks import mpirun

RANKS, RANKS_PER_NODE = 4, 2
# What each rank does: stage all files or a subset, deliver a batch, and meet.
RANK = """
import os, signal, sys, time
from msgspec.structs import replace
from pathlib import Path
import numpy as np
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.harness.cluster.entry import run_rank
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.resources import RankContext
from dlio_bench.harness.readers.resources import RankContext
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Tally, largest, plan_batches
from dlio_bench.harness.storage import tier

work, data, tiers, placement, harm = sys.argv[1:]
if harm == "quota":  # what is free is not always what one gets
    room = tier.room
    tier.room = lambda held: replace(room(held), free=10**12)


def body(comm):
    seat = RankContext(comm, 2, Path(tiers) / f"node{comm.rank // 2}")
    form = SampleView(open_dataset(Path(data)), ("record",))
    plan = plan_batches(form, [(0, [np.arange(comm.rank, form.dataset.samples)])])
    policy = replace(find("double-buffer"), placement=placement)
    resources = Resources(threads=2, staging_bytes=2 * largest(plan), batch_bytes=largest(plan))
    reader = open_reader(policy, form, resources, seat)
    copy = tier.copy

    def killed(*arguments):
        copy(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    if harm == "kill" and comm.rank == 1:
        tier.copy = killed
    with reader.session(plan, Tally()) as batches:
        next(batches)
        comm.barrier()


raise SystemExit(run_rank(Path(work), lambda: (4, body)))
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("data"), "cosmoflow", 24)


def stage(dataset: Dataset, tiers: Path, work: Path, placement: str, harm: str = "") -> BenchError | None:
    """Run a job of two nodes of two ranks; what its user is told when it fails."""
    for node in range(RANKS // RANKS_PER_NODE):
        (tiers / f"node{node}").mkdir(exist_ok=True)
    work.mkdir()
    command = (sys.executable, "-c", RANK, str(work), str(dataset.folder), str(tiers), placement, harm)
    argv, env = mpirun(2, command, ranks_per_node=RANKS_PER_NODE)
    try:
        launch(argv, env, work, lambda _: None)
    except BenchError as error:
        return error
    return None


def left(tiers: Path) -> list[Path]:
    return [path for node in tiers.iterdir() for path in node.iterdir()]


def test_a_tier_that_is_too_small_is_found_before_copying(dataset: Dataset, mount: Mount, tmp_path: Path) -> None:
    """Which the contract suite finds of each placement, without a launch."""
    tiers = mount("size=200k")
    error = stage(dataset, tiers, tmp_path / "work", "stage-partition")
    assert isinstance(error, EnvironmentFailure)
    assert "stage-partition needs" in str(error)
    assert str(tiers) in str(error)
    assert "--local-tier" in str(error)
    assert left(tiers) == []


@pytest.mark.parametrize("placement", ["stage-replicate", "stage-subset"])
def test_a_tier_that_fills_up_while_copying_ends_the_job(
    placement: str, dataset: Dataset, mount: Mount, tmp_path: Path
) -> None:
    tiers = mount("size=200k")
    error = stage(dataset, tiers, tmp_path / "work", placement, "quota")
    assert isinstance(error, EnvironmentFailure)
    assert f"The local tier {tiers}" in str(error)
    assert "is full" in str(error)
    assert "--local-tier" in str(error)
    assert left(tiers) == []


def test_a_killed_rank_ends_the_job_and_the_next_one_clears_what_it_left(dataset: Dataset, tmp_path: Path) -> None:
    tiers = tmp_path / "tiers"
    tiers.mkdir()
    error = stage(dataset, tiers, tmp_path / "work", "stage-subset", "kill")
    assert isinstance(error, EnvironmentFailure)
    assert "Rank 1" in str(error)
    assert "SIGKILL" in str(error)
    assert any(path.name.startswith(tier.PREFIX) for path in left(tiers))
    until(lambda: not pids_of(str(tiers)), missing="a rank is left")
    assert stage(dataset, tiers, tmp_path / "again", "stage-subset") is None
    assert left(tiers) == []
