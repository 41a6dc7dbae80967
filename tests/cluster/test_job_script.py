"""Job scripts that are really submitted."""

import json

from tests.cluster.cluster import Cluster
from tests.plans import TINY
from tests.processes import until

PLAN = f"""nodes = [1, 2]
ranks_per_node = [2]
{TINY.replace('"naive", ', "")}
[limits.cdb.prefetch."2x2"]
delivered_bandwidth = {{ at_least = "1 kB/s" }}
"""


def test_an_acceptance_is_submitted_and_judged(slurm: Cluster) -> None:
    (slurm.work / "plan.toml").write_text(PLAN)
    (slurm.work / "data").mkdir()
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
