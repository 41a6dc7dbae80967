"""Job scripts that are really submitted."""

import json

from tests.cluster.cluster import Cluster
from tests.processes import until

PLAN = """
nodes = [1, 2]
ranks_per_node = [2]
min_seconds = 0
[system]
name = "a test"
[dataset]
folder = "data"
times_memory = 0
steps = 16
[[run]]
workload = "cdb"
readers = ["prefetch"]
tiny = true
batch = 1
compute = "emulate:5ms"
[limits.cdb.prefetch."2x2"]
delivered_bandwidth = { at_least = "1 kB/s" }
"""


def test_an_acceptance_is_submitted_and_judged(slurm: Cluster) -> None:
    (slurm.work / "plan.toml").write_text(PLAN)
    told = slurm.dlio(
        "node1", "sbatch", "--submit", "--json", "--time", "5min", "accept", "plan.toml", "--out", "delivered"
    )
    submitted = json.loads(told.stdout)
    assert submitted["nodes"] == 2
    until(lambda: slurm.on("node1", "squeue", "--noheader", "--job", submitted["job"]).stdout == "")
    log = (slurm.work / f"dlio-bench-accept-{submitted['job']}.log").read_text()
    judgement = slurm.work / "delivered" / "judgement.json"
    assert judgement.exists(), log
    assert json.loads(judgement.read_text())["verdict"] == "pass", log
    results = [json.loads(path.read_text()) for path in (slurm.work / "delivered").rglob("result.json")]
    assert sorted(len(result["environment"]["hosts"]) for result in results) == [1, 2]
    assert not any("VIRTUAL NODES" in result["marks"] for result in results)
