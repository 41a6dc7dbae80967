"""Placements of samples in real runs, by the counters of an emulated file system."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness import cli
from dlio_bench.harness.plan.policies import POLICIES
from tests.mpi.conftest import dlio
from tests.needs import needs
from tests.processes import DLIO
from tests.results import load

SMALL = ("run", "hepcnnb", "--tiny", "--epochs", "3", "--warmup-trials", "0")
PFS = ("--emulate-pfs", "bandwidth=200MB/s")


def epochs(result: dict[str, Any], name: str) -> list[int]:
    return [epoch[name] for trial in result["trials"] for epoch in trial["epochs"]]


def test_every_row_runs_and_stands_beside_the_others_in_one_report(cache: Path, tmp_path: Path) -> None:
    names = [row.name for row in POLICIES.values() if row.rule.keeps_samples]
    asked = ("--nodes", "2", "--reader", ",".join(names), "--out", "out", "--verbose")
    done = dlio(cache, tmp_path, *SMALL, *PFS, *asked)
    assert "RAM tier" in done.stdout
    for name in names:
        result, _ = load(tmp_path / "out" / f"{name}-2x1")
        assert all(check["ok"] for check in result["checks"]), result["checks"]
        assert result["policy"]["placement"] == POLICIES[name].placement
        assert result["policy"]["options"]["ram_tier_bytes"] > 0
        assert sum(epochs(result, "bytes_ram")) > 0
        assert sum(epochs(result, "remote_misses")) == 0 or POLICIES[name].rule.behaviour.guesses


def test_the_file_system_delivers_each_sample_once_where_all_tiers_together_hold_the_dataset(
    cache: Path, tmp_path: Path
) -> None:
    scale = ("--nodes", "2", "--ranks-per-node", "2")
    readers = ("--reader", "double-buffer,cooperative", "--trials", "1")
    # 25 MB in all: more than a node's tier
    tiers = ("--tiers", "ram=16MB")
    dlio(cache, tmp_path, *SMALL, *scale, *PFS, *readers, *tiers, "--out", "out")
    result, _ = load(tmp_path / "out" / "cooperative-2x2")
    stored = load(tmp_path / "out" / "double-buffer-2x2")[0]["trials"][0]["epochs"][0]["bytes_requested"]
    assert stored > 16_000_000
    delivered = epochs(result, "bytes_device")
    assert sum(delivered) <= 1.02 * stored
    assert all(size < 0.01 * stored for size in delivered[1:])
    assert sum(epochs(result, "bytes_requested")) == stored
    assert sum(epochs(result, "bytes_remote")) > 0


@needs("mounts")
def test_ranks_share_a_tier_larger_than_the_shared_memory_of_their_container(cache: Path, tmp_path: Path) -> None:
    """As `docker run` gives 64 MB of it, for a tier that has to hold 5 MB."""
    small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh")
    scale = ("--ranks-per-node", "2", "--reader", "cooperative", "--trials", "1", "--tiers", "ram=20MB")
    done = subprocess.run(
        [*small, *DLIO, *SMALL, *PFS, *scale, "--out", "out"],
        cwd=tmp_path, env=os.environ | {"DLIO_BENCH_CACHE": str(cache)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result, _ = load(tmp_path / "out" / "cooperative-1x2")
    assert 3 * sum(epochs(result, "bytes_requested")) == sum(epochs(result, "bytes_planned"))
    assert sum(epochs(result, "bytes_ram")) > 0


def test_tiers_that_are_too_small_save_what_they_hold(cache: Path, tmp_path: Path) -> None:
    tiers = ("--tiers", "ram=500kB,disk=500kB")
    dlio(cache, tmp_path, *SMALL, "--nodes", "4", *PFS, "--reader", "cooperative", *tiers, "--out", "out")
    result, _ = load(tmp_path / "out" / "cooperative-4x1")
    assert all(check["ok"] for check in result["checks"])
    first, *later = epochs(result, "bytes_requested")
    assert all(0.3 * first < size < 0.9 * first for size in later)
    assert sum(epochs(result, "bytes_device")) <= 1.02 * sum([first, *later])
    # who reads each sample once an epoch reads no less than this, with tiers of so many bytes in all
    least = first + len(later) * (first - 4 * 1_000_000)
    assert least <= sum([first, *later]) <= 1.05 * least
    assert min(epochs(result, "bytes_local")[1:]) > 0


def test_a_placement_that_needs_the_whole_dataset_in_memory_says_so(refused: Callable[..., str]) -> None:
    asked = ("--reader", "lbann-preload", "--tiers", "ram=1kB", "--nodes", "2")
    assert "Use more nodes or a larger RAM tier" in refused("run", "cdb", "--tiny", *asked, "--out", "out")


def test_a_dry_run_says_what_nodes_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path))
    asked = ("run", "cdb", "--tiny", "--nodes", "2", "--reader", "cooperative", "--tiers", "ram=7MB,disk=3MB")
    assert cli.main([*asked, "--dry-run"]) == 0
    assert "7 MB in memory and 3 MB on node-local storage a node" in " ".join(capsys.readouterr().out.split())
    assert cli.main([*asked, "--dry-run", "--json"]) == 0
    [job] = json.loads(capsys.readouterr().out)
    assert job["tiers"] == {"ram": 7_000_000, "disk": 3_000_000, "rates": None}
