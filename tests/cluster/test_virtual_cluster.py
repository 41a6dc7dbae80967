"""The script that plays a cluster: it cleans up after itself, and says what it lacks."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import SCRIPT
from tests.processes import pids_of, until

LEFT_ALONE = """
import signal, sys
from pathlib import Path
from tests.cluster.cluster import cluster

with cluster(Path(sys.argv[1]), 2, slurm=True) as made:
    (made.work / "up").touch()
    signal.pause()
"""


def what_is_up(folder: Path) -> list[object]:
    """The processes of a cluster, and its bridge."""
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    return [*pids_of(str(folder)), *Path("/sys/class/net").glob(f"dlio-{mark}")]


def test_a_cluster_ends_with_the_process_that_made_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("o") / "c"
    owner = subprocess.Popen([sys.executable, "-c", LEFT_ALONE, str(folder)], cwd=SCRIPT.parents[2])
    try:
        until((folder / "work" / "up").exists, owner)
        assert len(what_is_up(folder)) > 5
    finally:
        owner.kill()
        owner.wait()
    until(lambda: not what_is_up(folder), missing="a cluster outlives its owner")
    assert not (folder / "hosts.d").exists()


def test_down_may_come_twice(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    subprocess.run([SCRIPT, "up", folder, "1"], check=True)
    assert what_is_up(folder)
    for _ in range(2):
        subprocess.run([SCRIPT, "down", folder], check=True)
        until(lambda: not what_is_up(folder))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for name in ("bash", "cut", "dirname", "find", "nsenter", "pgrep", "realpath", "sha256sum", "ssh"):
        (tmp_path / name).symlink_to(Path("/usr/bin") / name)
    up = ["bash", SCRIPT, "up", tmp_path / "c", "2", "slurm"]
    without = subprocess.run(up, env=os.environ | {"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert without.returncode == 1
    assert without.stderr.endswith("apt-get install --no-install-recommends slurm-client\n")
    nobody = subprocess.run(["unshare", "--user", *up], capture_output=True, text=True)
    assert nobody.returncode == 1
    assert "need root" in nobody.stderr
    assert not (tmp_path / "c").exists()
