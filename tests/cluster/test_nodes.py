"""What each node does for itself: its tiers, its view of code and data, its clock."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness.commands import listing
from dlio_bench.harness.storage.tier import NODES
from tests.cluster.cluster import PATIENCE, Cluster

LAGGING, LAG = Path(__file__).with_name("lagging.py"), 2.0  # seconds
SOON = 120.0  # seconds
NODE_NAMES = ("node1", "node2")
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
# libfaketime 0.9.10 that leaves the monotonic clock alone refuses Python's sleeps, which it has no reason to touch.
SLEEPS = """
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
  return syscall(SYS_clock_nanosleep, clock, flags, until, left) ? errno : 0;
}
"""


def asked(*arguments: str, nodes: int = 2) -> list[str]:
    command = ["dlio-bench", "run", "cdb", "--tiny", "--nodes", str(nodes), "--json", *arguments]
    return ["salloc", "--quiet", f"-N{nodes}", "--exclusive", *command]


def results(slurm: Cluster, *arguments: str, nodes: int = 2, **env: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(slurm.on("node1", *asked(*arguments, nodes=nodes), **env).stdout)
    return told


@contextmanager
def mounted(slurm: Cluster, host: str, at: Path, *how: str) -> Iterator[None]:
    """A mount that this host alone has."""
    slurm.on(host, "mount", *how, str(at))
    try:
        yield
    finally:
        slurm.on(host, "umount", "--lazy", str(at))


@pytest.fixture
def disks(slurm: Cluster) -> Iterator[Path]:
    """A folder that each of two nodes has on storage of its own, the second one's being smaller."""
    disk = Path("/tmp/disk")
    for host, size in zip(NODE_NAMES, ("512m", "256m"), strict=True):
        slurm.on(host, "mkdir", str(disk))
        slurm.on(host, "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk))
    yield disk
    for host in NODE_NAMES:
        slurm.on(host, "umount", "--lazy", str(disk))
        slurm.on(host, "rmdir", str(disk))


@pytest.fixture(scope="module")
def data(slurm: Cluster) -> Path:
    folder = slurm.work / "nodes-data"
    slurm.dlio("node1", "generate", "cdb", "--tiny", "--files", "8", "--out", str(folder))
    return folder


def entries(slurm: Cluster, host: str, folder: Path) -> list[str]:
    return slurm.on(host, "ls", str(folder)).stdout.split()


def test_each_node_makes_a_tier_folder_of_its_own_and_the_least_size_counts(
    slurm: Cluster, data: Path, disks: Path
) -> None:
    slurm.on("node2", "mkdir", str(disks / f"{NODES}left"))  # by a run that was killed
    prefetch, staged = results(slurm, "--data", str(data), "--local-tier", str(disks), "--reader", "prefetch,staged")
    assert prefetch["class"] == staged["class"] == "EXPLORE"
    hosts = prefetch["environment"]["hosts"]
    rooms = {name: host["room"] for name, host in hosts.items()}
    assert rooms.keys() == set(NODE_NAMES)
    assert rooms["node1"]["disk_tier_bytes"] > rooms["node2"]["disk_tier_bytes"] > 0
    folders = prefetch["environment"]["tier_folders"]
    assert folders == [rooms[name]["local_tier"] for name in NODE_NAMES]
    assert len(set(folders)) == 2
    assert [note for note in prefetch["plan"]["notes"] if "'disk'" in note and "which node2 has" in note]
    assert prefetch["options"]["tiers"]["disk"] == rooms["node2"]["disk_tier_bytes"]
    for trial in prefetch["trials"]:  # each host drops its own page cache
        assert trial["cache"]["hosts"].keys() == set(NODE_NAMES)
        assert {host["bytes"] for host in trial["cache"]["hosts"].values()} == {prefetch["dataset"]["stored_bytes"]}
    for host in NODE_NAMES:
        assert entries(slurm, host, disks) == []


def test_no_node_needs_a_home(slurm: Cluster, data: Path, disks: Path) -> None:
    home = Path("/nonexistent/home")
    arguments = ("--data", str(data), "--local-tier", str(disks), "--reader", "prefetch,staged")
    assert len(results(slurm, *arguments, HOME=str(home))) == 2
    for host in NODE_NAMES:
        slurm.on(host, "test", "-e", str(home.parent), status=1)


def test_files_of_other_hosts_may_show_late(slurm: Cluster, data: Path) -> None:
    """Rank 0 is on another host than the command, so both wait for the other's files."""
    behind, point = slurm.work / "behind", slurm.work / "lagging"
    behind.mkdir()
    point.mkdir()
    for host in ("node1", "node2"):
        slurm.on(host, sys.executable, str(LAGGING), str(behind), str(point), str(LAG))
    try:
        one = asked(
            "--data", str(data), "--reader", "naive", "--out", str(point / "out"), "--launcher", "srun", nodes=1
        )
        told = json.loads(slurm.on("node1", *one[:3], "-w", "node2", *one[3:]).stdout)
        assert told[0]["environment"]["rank_hosts"] == ["node2"]
        wrong = asked("--data", str(data), "--reader", "staged", "--out", str(point / "failed"),
                      "--local-tier", "/nowhere", "--launcher", "srun", nodes=1)  # fmt: skip
        said = slurm.on("node1", *wrong[:3], "-w", "node2", *wrong[3:], status=4).stderr
        assert "--local-tier /nowhere is not a folder on node2" in said
    finally:
        for host in ("node1", "node2"):
            slurm.on(host, "fusermount3", "-u", "-z", str(point))


def test_a_tier_that_nodes_share_is_refused(slurm: Cluster, data: Path) -> None:
    shared = slurm.work / "shared"
    shared.mkdir()
    said = slurm.on(
        "node1", *asked("--data", str(data), "--reader", "staged", "--local-tier", str(shared)), status=4
    ).stderr
    assert "is no node-local storage" in said
    assert "node1" in said
    assert "node2" in said
    gone(slurm, "node1", shared)


def gone(slurm: Cluster, host: str, folder: Path) -> None:
    deadline = time.monotonic() + SOON
    while left := entries(slurm, host, folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_the_folders_go_when_a_rank_is_killed(slurm: Cluster, data: Path, disks: Path) -> None:
    arguments = asked(
        "--data", str(data), "--reader", "staged", "--local-tier", str(disks), "--compute", "emulate:60s",
    )  # fmt: skip
    running = slurm.start("node1", *arguments)
    deadline = time.monotonic() + PATIENCE
    while not all(tier_files(slurm, host, disks) for host in NODE_NAMES):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    ranks = slurm.on("node2", "pgrep", "-f", "run.measured.rank").stdout.split()
    slurm.on("node2", "kill", f"-{int(signal.SIGKILL)}", ranks[-1])
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 4
    for host in NODE_NAMES:
        gone(slurm, host, disks)


def tier_files(slurm: Cluster, host: str, folder: Path) -> list[str]:
    return slurm.on(host, "find", str(folder), "-type", "f").stdout.split()


def test_a_host_with_other_code_is_named(slurm: Cluster, data: Path) -> None:
    source = Path(str(listing.__file__))
    other = slurm.work / source.name
    other.write_text(source.read_text() + "# changed\n")
    with mounted(slurm, "node2", source, "--bind", str(other)):
        said = slurm.on("node1", *asked("--data", str(data), "--reader", "naive"), status=4).stderr
    assert "on node2 has another code" in said


def test_a_host_with_another_dataset_or_none_is_named(slurm: Cluster, data: Path) -> None:
    other, empty = slurm.work / "other", slurm.work / "empty"
    slurm.dlio("node1", "generate", "cdb", "--tiny", "--files", "8", "--seed", "2", "--out", str(other))
    empty.mkdir()
    arguments = asked("--data", str(data), "--reader", "naive")
    with mounted(slurm, "node2", data, "--bind", str(other)):
        assert "on node2 has another dataset" in slurm.on("node1", *arguments, status=4).stderr
    with mounted(slurm, "node2", data, "--bind", str(empty)):
        assert f"node2 sees no dataset in {data}. Make it visible" in slurm.on("node1", *arguments, status=4).stderr


def test_a_full_or_dead_disk_is_named_with_its_host(slurm: Cluster, data: Path, disks: Path) -> None:
    arguments = asked("--data", str(data), "--reader", "staged", "--local-tier", str(disks))
    with mounted(slurm, "node2", disks, "-t", "tmpfs", "-o", "size=100k", "tmpfs"):
        said = slurm.on("node1", *arguments, status=4).stderr
    assert f"local tier {disks}" in said
    assert "on node2" in said
    assert "--local-tier" in said
    with mounted(slurm, "node2", disks, "-t", "tmpfs", "-o", "ro", "tmpfs"):
        said = slurm.on("node1", *arguments, status=4).stderr
    assert f"The local tier {disks} on node2 cannot be used: Read-only file system" in said
    with mounted(slurm, "node2", disks, "-t", "tmpfs", "-o", "size=100m", "tmpfs"):
        asking = asked("--data", str(data), "--local-tier", str(disks), "--tiers", "ram=1MB,disk=200MB")
        said = slurm.on("node1", *asking, status=4).stderr
    assert "A tier 'disk' of 200 MB does not fit on node2" in said


def test_clocks_that_are_wrong_change_no_number_and_are_stated(slurm: Cluster, data: Path) -> None:
    wrong = {"node2": 5, "node3": 86400}  # seconds
    file, sleeps = "/tmp/faketime", slurm.work / "sleeps.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", sleeps], input=SLEEPS, text=True, check=True)
    for host, seconds in wrong.items():
        slurm.on(host, "sh", "-c", f"echo +{seconds} > {file}")
    try:
        [result] = results(
            slurm, "--data", str(data), "--reader", "prefetch", "--compute", "emulate:10ms",
            "--launcher", "mpirun", nodes=3,
            LD_PRELOAD=f"{sleeps}:{FAKETIME}", FAKETIME_TIMESTAMP_FILE=file, FAKETIME_DONT_FAKE_MONOTONIC="1",
        )  # fmt: skip
    finally:
        for host in wrong:
            slurm.on(host, "rm", file)
    assert result["class"] == "EXPLORE"
    hosts = result["environment"]["hosts"]
    for host in ("node1", *wrong):
        assert abs(hosts[host]["clock_offset_seconds"] - wrong.get(host, 0)) < 1
    stated = [note for note in result["plan"]["notes"] if "ahead of that of node1" in note]
    assert [note for note in stated if re.search(r"clock of node2 is [45](\.\d+)? s ahead", note)]
    for trial in result["trials"]:
        assert 0 < trial["elapsed_seconds"] < wrong["node3"]
        assert all(0 < epoch["seconds"] <= trial["elapsed_seconds"] for epoch in trial["epochs"])
        assert abs(trial["clock_drift_seconds"]) < trial["elapsed_seconds"]
