"""The command inside Slurm's allocations."""

import json

from tests.cluster.cluster import Cluster


def test_a_run_has_real_nodes(slurm: Cluster) -> None:
    told = slurm.on(
        "node1", "salloc", "-N4", "--exclusive", "dlio-bench", "run", "cdb", "--tiny", "--nodes", "4",
        "--ranks-per-node", "2", "--reader", "prefetch", "--json",
    )  # fmt: skip
    [result] = json.loads(told.stdout)
    assert len(result["environment"]["hosts"]) == 4
    assert "VIRTUAL NODES" not in result["marks"]
