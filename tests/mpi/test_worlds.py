"""The suites that ranks share, under real mpirun: one launch a world size.

With 2 ranks all of them; with 4 those in which more ranks than two make a difference, which have something to give each
other; with one only how ranks talk, as the rest is what runs without mpirun too.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dlio_bench.harness.cluster import launchers

NAMES = ("comm", "peers", "readers", "ahead", "placed", "staged", "staging_job", "pipelines")
GIVING = ("comm", "peers", "placed", "staged", "staging_job")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("ranks", "names"), [(1, ["comm", "peers"]), (2, NAMES), (4, GIVING)], ids=["1", "2", "4"])
def test_the_shared_suites_pass_on_every_rank(ranks: int, names: Sequence[str], tmp_path: Path) -> None:
    suites = [f"tests/contract/test_{name}.py" for name in names]
    site = launchers.detect_site(os.environ)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites)
    job = launchers.Job(
        ranks, 1, command, virtual=True, env={"DLIO_TEST_WORLD": str(ranks), "DLIO_TEST_TEMP": str(tmp_path)}
    )
    env = launchers.launch_env(job, site, os.environ)
    argv = launchers.LAUNCHERS["mpirun"](replace(job, env=env), site)
    done = subprocess.run(argv, env=os.environ | env, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks
    assert "skipped" not in done.stdout
