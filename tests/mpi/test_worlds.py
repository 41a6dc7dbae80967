"""The suites that ranks share, under real mpirun: one launch a world size, and each class that waits for others in one.

With 4 ranks those classes of placements in which more ranks than two have something to give each other, and staging,
whose nodes then have two ranks; with 2 all other ways to place, and a reader that asks no other rank. How ranks talk is
tested with both. A new class of `placed` or `staged` runs with 2. One rank, and tests in which other ranks have no part
(`alone`), are what runs without mpirun.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import mpirun

TALK = ("comm", "peers", "grayscott")
SUITES = {
    2: (*TALK, "readers", "placed", "staged"),
    4: (
        *TALK, "placed::TestCooperative", "placed::TestCooperativeOneModelOnNodesOfTwo", "placed::TestClairvoyant",
        "placed::TestLbannDynamic", "placed::TestDeepioWithoutRoom", "staging_job",
    ),
}  # fmt: skip
# What 2 ranks leave out: classes that 4 run, and those of which other classes have all that ranks do together.
# Decoding is each rank's own (tests/mpi/test_run_readers.py has it with two), as are files in memory; staging on demand
# is in `staging_job`.
LEFT_OUT = {
    2: (
        *(name for name in SUITES[4] if "::" in name), "placed::TestCooperativeOneModel",
        "placed::TestCooperativeWithoutRoom", "placed::TestCooperativeDecoded", "placed::TestCooperativeOnFastStorage",
        "placed::TestDeepioOrdered", "staged::TestPartitionOnDemand",
    )
}  # fmt: skip
ROOT = Path(__file__).parents[2]


def suite(name: str) -> str:
    """pytest's name of a file, or of a class in it."""
    file, colons, within = name.partition("::")
    return f"tests/contract/test_{file}.py{colons}{within}"


@pytest.mark.parametrize("ranks", SUITES)
def test_the_shared_suites_pass_on_every_rank(ranks: int, tmp_path: Path) -> None:
    without = [f"--deselect={suite(name)}::" for name in LEFT_OUT.get(ranks, ())]
    options = ("-q", "-p", "no:cacheprovider", "-m", "not alone")
    command = (sys.executable, "-m", "pytest", *options, *map(suite, SUITES[ranks]), *without)
    argv, env = mpirun(ranks, command, {"DLIO_TEST_WORLD": str(ranks), "DLIO_TEST_TEMP": str(tmp_path)})
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks
    assert "skipped" not in done.stdout
