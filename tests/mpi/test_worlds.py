"""The suites that ranks share, under real mpirun with 1, 2 and 4 ranks: one launch a world size."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dlio_bench.harness.cluster import launchers

NAMES = ("comm", "peers", "readers", "ahead", "placed", "staged", "staging_job", "pipelines")
SUITES = [f"tests/contract/test_{name}.py" for name in NAMES]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_shared_suites_pass_on_every_rank(ranks: int, tmp_path: Path) -> None:
    site = launchers.detect_site(os.environ)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES)
    job = launchers.Job(
        ranks, 1, command, virtual=True, env={"DLIO_TEST_WORLD": str(ranks), "DLIO_TEST_TEMP": str(tmp_path)}
    )
    env = launchers.launch_env(job, site, os.environ)
    argv = launchers.LAUNCHERS["mpirun"](replace(job, env=env), site)
    done = subprocess.run(argv, env=os.environ | env, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks
    assert "skipped" not in done.stdout
