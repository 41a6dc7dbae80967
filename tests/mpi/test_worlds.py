"""The suites that ranks share, under real mpirun: one launch a world size.

With one rank only how ranks talk, as the rest is what runs without mpirun too; with 2 a class of each way to deliver
and to place; with 4 those in which more ranks than two make a difference, which have something to give each other.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dlio_bench.harness.cluster import launchers

TALK = ("comm", "peers")
SUITES = {
    1: TALK,
    2: (
        *TALK, "readers", "ahead::TestDoubleBuffer", "placed", "staged", "staging_job", "pipelines::TestHepcnnb",
        "pipelines::TestTfDataImageNet",
    ),
    4: (
        *TALK, "placed::TestCooperative", "placed::TestCooperativeOneModelOnNodesOfTwo", "placed::TestClairvoyant",
        "placed::TestLbannDynamic", "placed::TestDeepioWithoutRoom", "staging_job",
    ),
}  # fmt: skip
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("ranks", SUITES)
def test_the_shared_suites_pass_on_every_rank(ranks: int, tmp_path: Path) -> None:
    names = [name.partition("::") for name in SUITES[ranks]]
    suites = [f"tests/contract/test_{file}.py{colons}{suite}" for file, colons, suite in names]
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
