"""The suites that ranks share, under real mpirun: one launch a world size.

With one rank only how ranks talk, as the rest is what runs without mpirun too; with 2 a class of each way to deliver
and to place; with 4 those in which more ranks than two make a difference, which have something to give each other.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import mpirun

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
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites)
    argv, env = mpirun(ranks, command, {"DLIO_TEST_WORLD": str(ranks), "DLIO_TEST_TEMP": str(tmp_path)})
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks
    assert "skipped" not in done.stdout
