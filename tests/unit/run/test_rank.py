"""A rank refuses to measure something else than what it was launched for."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import find
from dlio_bench.harness.cluster.environment import code_digest, host_name
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.training import Training, Validation
from dlio_bench.harness.plan.policies import POLICIES
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from tests.datasets import made
from tests.jobs import JOB
from tests.processes import PATIENCE

pytestmark = pytest.mark.slow


def job(folder: Path, **changes: Any) -> Job:
    dataset = made(folder / "data", "cdb", 4)
    asked = replace(
        JOB, readers={"naive": POLICIES["naive"]}, nodes=1, virtual=False, options=Options("hepcnnb", tiny=True),
        dataset=str(dataset.folder),
        dataset_digest=dataset.digest, code_digest=code_digest(), view=find("cdb").view, warmup_trials=0,
        cache="as-is", node_memory=1_000_000_000, step_seconds=0.0, staging_bytes=10_000_000,
    )  # fmt: skip
    return replace(asked, **changes)


def run(asked: Job, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Exit status of one rank, and what it said of its failure."""
    asked.save(folder)
    command = [sys.executable, "-P", "-m", "dlio_bench.harness.commands.run.measured.rank", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(path.read_text()) for path in folder.glob("error-*.json")]


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    asked = job(
        tmp_path,
        tiers=Tiers(10, 20, {"pfs": 1e9}),
        pfs=PfsSpec(400e6, cache_bytes=5),
        train=Training("tiramisu", None, fp16=True, lag=1, hierarchical=False, timeout=9.0, checkpoint=4),
        validation=Validation(2, 0.25),
        tier_folders=("a", "b"),
    )
    asked.save(tmp_path)
    assert Job.load(tmp_path) == asked


def test_a_host_without_the_dataset_is_named_as_a_fault_of_its_environment(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    status, errors = run(job(tmp_path, dataset=str(folder)), tmp_path)
    assert status == 4
    assert f"{host_name()} sees no dataset in {folder}. Make it visible on every node" in str(errors)


def test_readers_begin_a_trial_in_turn_and_all_are_kept(tmp_path: Path) -> None:
    readers = {name: POLICIES[name] for name in ("naive", "shuffled", "double-buffer")}
    asked = job(tmp_path, readers=readers, trials=3, warmup_trials=1)
    asked.save(tmp_path)
    command = [sys.executable, "-P", "-m", "dlio_bench.harness.commands.run.measured.rank", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    events = [json.loads(line.removeprefix("@dlio-bench ")) for line in said.splitlines()]
    turns = [event["reader"] for event in events if event["event"] == "trial"]
    assert [turns[first : first + 3] for first in range(0, 12, 3)] == [
        ["naive", "shuffled", "double-buffer"],
        ["shuffled", "double-buffer", "naive"],
        ["double-buffer", "naive", "shuffled"],
        ["naive", "shuffled", "double-buffer"],
    ]
    for reader in asked.readers:
        kept = json.loads((tmp_path / f"{reader}.json").read_text())
        assert kept["verified"]["damaged_fields"] == 0
        assert (tmp_path / f"{reader}.npz").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"code_digest": "0" * 64}, "Rank 0 on {host} has another code"),
        ({"dataset_digest": "sha256:" + "0" * 64}, "Rank 0 on {host} has another dataset"),
        ({"nodes": 2}, "2 ranks were asked for, but they came up in worlds of 1"),
    ],
)
def test_anything_else_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    status, reports = run(job(tmp_path, **changes), tmp_path)
    assert status == 4
    assert [report["expected"] for report in reports] == [True]
    assert says.format(host=host_name()) in reports[0]["message"]
    assert not (tmp_path / "measured.json").exists()
