"""A node of a job under Slurm is lost: the job ends, names it, and leaves nothing on the other nodes."""

import re
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster, cluster
from tests.processes import PATIENCE, until

RANKS = "run.measured.rank"  # in the command line of a rank
JOB = (
    "salloc", "-N3", "--exclusive", "dlio-bench", "run", "cdb", "--tiny", "--nodes", "3", "--ranks-per-node", "2",
    "--reader", "prefetch", "--local-tier", "/tmp", "--tiers", "ram=1MB,disk=100MB", "--trials", "1",
    "--warmup-trials", "0", "--min-seconds", "0", "--epochs", "4000", "--compute", "emulate:500ms", "--timeout", "8s",
)  # fmt: skip


@pytest.fixture
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes under Slurm, the last of which a test breaks."""
    with cluster(tmp_path_factory.mktemp("f") / "c", 3, slurm=True) as made:
        yield made


def remains(made: Cluster) -> list[str]:
    """What stands in the folders of the other nodes, and the ranks that run there."""
    found = []
    for host in ("node1", "node2"):
        found += [f"{host} {line}" for line in made.on(host, "ls", "-A", "/tmp", "/dev/shm").stdout.split()]
        found += [f"{host} process {pid}" for pid in made.processes(host, RANKS)]
    return found


@pytest.mark.parametrize("fault", ["kill", "cut"])
def test_a_job_that_loses_a_node_names_it_and_leaves_nothing(breakable: Cluster, fault: str) -> None:
    """Whoever finds out first says so: ranks whose connections break, the time limit, or Slurm."""
    before = remains(breakable)
    job, says = breakable.measuring("node1", *JOB)
    assert len(remains(breakable)) > len(before)
    breakable.do(fault, "node3")
    job.communicate(timeout=PATIENCE)
    assert job.returncode == 4, says.read_text()
    [paragraph] = [line for line in says.read_text().splitlines() if line.startswith("dlio-bench: ")]
    assert re.search("did not tell how rank 4|gave no sign of life|Slurm gave up", paragraph), paragraph
    assert "node3" in paragraph
    assert "node1" not in paragraph
    assert "Traceback" not in says.read_text()
    until(lambda: remains(breakable) == before, missing=f"left: {set(remains(breakable)) - set(before)}")
