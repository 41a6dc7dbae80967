"""MPI in a process without a launcher works, and leaves nothing on disk."""

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import PATIENCE

ALONE = """
import os
before = dict(os.environ)
from dlio_bench.harness.cluster.mpi import places, whole_world
world = whole_world("a test")
assert dict(os.environ) == before
assert world.allgather(7) == [7] and places(world) == [(0, 0, 1)]
"""


def test_a_world_of_one_leaves_nothing(tmp_path: Path) -> None:
    named = {"TMPDIR": str(tmp_path), "OMPI_MCA_btl_sm_backing_directory": str(tmp_path), "OMPI_MCA_pml": "ob1"}
    subprocess.run([sys.executable, "-c", ALONE], env=os.environ | named, check=True, timeout=PATIENCE)
    assert list(tmp_path.iterdir()) == []
