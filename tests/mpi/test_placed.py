"""Placements of samples in real runs: by the counters of an emulated file system, and when a rank is killed."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.plan.policies import POLICIES
from dlio_bench.harness.storage import tier
from tests.mpi.conftest import dlio, start
from tests.mpi.test_run import keeping, two_ranks
from tests.processes import PATIENCE, gone, until
from tests.results import load

SMALL = ("run", "hepcnnb", "--tiny", "--epochs", "3", "--warmup-trials", "0")
RUN = (*SMALL, "--nodes", "4")
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
        assert result["policy"]["placement"] == name
        assert result["policy"]["options"]["ram_tier_bytes"] > 0
        assert sum(epochs(result, "bytes_ram")) > 0
        assert sum(epochs(result, "remote_misses")) == 0 or name == "clairvoyant"


@pytest.mark.parametrize("scale", [("--nodes", "4"), ("--nodes", "2", "--ranks-per-node", "2")])
def test_the_file_system_delivers_each_sample_once_where_all_tiers_together_hold_the_dataset(
    cache: Path, tmp_path: Path, scale: tuple[str, ...]
) -> None:
    readers = ("--reader", "double-buffer,cooperative", "--trials", "1")
    # 9.5 MB in all: more than a node's tier
    tiers = ("--tiers", "ram=6MB")
    dlio(cache, tmp_path, *RUN, *scale, *PFS, *readers, *tiers, "--out", "out")
    name = "x".join(scale[1::2]) if len(scale) > 2 else "4x1"
    result, _ = load(tmp_path / "out" / f"cooperative-{name}")
    stored = load(tmp_path / "out" / f"double-buffer-{name}")[0]["trials"][0]["epochs"][0]["bytes_requested"]
    assert stored > 6_000_000
    delivered = epochs(result, "bytes_device")
    assert sum(delivered) <= 1.02 * stored
    assert all(size < 0.01 * stored for size in delivered[1:])
    assert sum(epochs(result, "bytes_requested")) == stored
    assert sum(epochs(result, "bytes_remote")) > 0


def test_tiers_that_are_too_small_save_what_they_hold(cache: Path, tmp_path: Path) -> None:
    dlio(cache, tmp_path, *RUN, *PFS, "--reader", "cooperative", "--tiers", "ram=500kB,disk=500kB", "--out", "out")
    result, _ = load(tmp_path / "out" / "cooperative-4x1")
    assert all(check["ok"] for check in result["checks"])
    first, *later = epochs(result, "bytes_requested")
    assert all(0.3 * first < size < 0.9 * first for size in later)
    assert sum(epochs(result, "bytes_device")) <= 1.02 * sum([first, *later])
    # who reads each sample once an epoch reads no less than this, with tiers of so many bytes in all
    least = first + len(later) * (first - 4 * 1_000_000)
    assert least <= sum([first, *later]) <= 1.05 * least
    assert min(epochs(result, "bytes_local")[1:]) > 0


def test_a_killed_rank_ends_the_run_and_leaves_no_tier(cache: Path, tmp_path: Path) -> None:
    left = kept()
    process = start(
        cache, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", "--epochs", "2000", "--reader", "cooperative",
        "--out", "out",
    )  # fmt: skip
    try:
        ranks = two_ranks(process, tmp_path / "out" / "work-")
        until(lambda: all(map(keeping, ranks)), process, "the ranks did not come to the timed loop")
        time.sleep(0.5)  # into it
        os.kill(ranks[1], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE)
        gone(ranks)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 4
    assert re.search(r"Rank \d \(process \d+ on \S+\) was ended by SIGKILL", err), err
    assert "Traceback" not in err
    made = kept() - left  # by others too, who are at work on this machine; theirs go
    until(lambda: not made & kept())


def kept() -> set[Path]:
    return set(SHARED_MEMORY.glob(f"{tier.PREFIX}*"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tiers", "nvme=1GB"], "names 'nvme'"),
        (["--tiers", "staging=1GB"], "--staging"),
        (["--tiers", "ram=900TB"], "does not fit into a node's memory"),
        (["--tiers", "ram=1MB,disk=900TB"], "need 1.8 PB in"),
        (["--reader", "lbann-preload", "--tiers", "ram=1kB"], "Use more nodes or a larger RAM tier"),
        (["--tiers", "ram=0"], "--tiers ram=1GB"),
        (["--reader", "lbann-preload", "--cache", "cold-epochs"], "keeps its copies over epochs"),
    ],
)
def test_tiers_that_cannot_be_are_refused_in_one_paragraph(
    arguments: list[str], says: str, refused: Callable[..., str]
) -> None:
    reader = [] if "--reader" in arguments else ["--reader", "cooperative"]
    assert says in refused("run", "cdb", "--tiny", "--nodes", "2", *reader, "--out", "out", *arguments)


def test_a_dry_run_says_what_nodes_keep(cache: Path, tmp_path: Path) -> None:
    asked = ("run", "cdb", "--tiny", "--nodes", "2", "--reader", "cooperative", "--tiers", "ram=7MB,disk=3MB")
    done = dlio(cache, tmp_path, *asked, "--dry-run")
    assert "7 MB in memory and 3 MB on node-local storage a node" in " ".join(done.stdout.split())
    [job] = json.loads(dlio(cache, tmp_path, *asked, "--dry-run", "--json").stdout)
    assert job["tiers"] == {"ram": 7_000_000, "disk": 3_000_000, "rates": None}
