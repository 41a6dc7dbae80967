"""The commands inside Slurm's allocations of four nodes, with two ranks on each."""

import json
from typing import Any

from dlio_bench.reports.traces import timeline
from tests.cluster.cluster import Cluster
from tests.processes import PATIENCE, until

ALLOCATE = ("salloc", "-N4", "--exclusive")
RUN = ("dlio-bench", "run")
SCALE = ("--nodes", "4", "--ranks-per-node", "2")
RANKS = "run.measured.rank"  # in the command line of a rank


def require_real(result: dict[str, Any], nodes: int) -> None:
    """It ran on that many hosts, and every byte was compared."""
    plan = result["plan"]
    assert (plan["nodes"], plan["ranks"]) == (nodes, 2 * nodes)
    assert sorted(result["environment"]["hosts"]) == [f"node{number + 1}" for number in range(nodes)]
    assert "VIRTUAL NODES" not in result["marks"]
    assert {check["name"]: check["ok"] for check in result["checks"]}["content"]
    assert result["verdict"] != "INVALID"


def test_a_workload_runs_with_several_readers(slurm: Cluster) -> None:
    """The other workloads run below."""
    told = slurm.on(
        "node1", *ALLOCATE, *RUN, "hepcnnb", "--tiny", *SCALE, "--reader", "naive,staged,prefetch",
        "--local-tier", "/tmp", "--json",
    )  # fmt: skip
    results = json.loads(told.stdout)
    assert [result["policy"]["alias"] for result in results] == ["naive", "staged", "prefetch"]
    for result in results:
        require_real(result, 4)


def test_a_batch_job_runs_as_well_and_records_what_all_hosts_do(slurm: Cluster) -> None:
    slurm.on(
        "node1", "sbatch", "--wait", "-N4", "--exclusive", "--output=batch.out", "--wrap",
        " ".join([*RUN, "imagenet", "--tiny", *SCALE, "--reader", "naive,staged,prefetch",
                  "--local-tier", "/tmp", "--trace", "spans", "--out", "batch"]),
    )  # fmt: skip
    results = [json.loads(path.read_text()) for path in (slurm.work / "batch").glob("*/result.json")]
    assert sorted(result["policy"]["alias"] for result in results) == ["naive", "prefetch", "staged"]
    for result in results:
        require_real(result, 4)
        spans = timeline.load(slurm.work / "batch" / f"{result['policy']['alias']}-4x2")
        assert not spans.problems
        hosts = {track.rank: track.host for track in spans.tracks}
        assert [hosts[rank] for rank in range(8)] == [f"node{1 + rank // 2}" for rank in range(8)]
        assert set(spans.rank[spans.are_of("pread", "copy read")].tolist()) == set(range(8))


def test_half_a_gigabyte_is_read_three_times_by_four_hosts(slurm: Cluster) -> None:
    """Without compute: on two cores that everybody shares an emulated step would end too late."""
    told = slurm.on(
        "node1", *ALLOCATE, *RUN, "cdb", "--max-data", "500MB", "--epochs", "3", "--min-seconds", "0", "--trials", "1",
        "--warmup-trials", "0", "--compute", "none", *SCALE, "--reader", "naive,prefetch", "--json",
    )  # fmt: skip
    naive, prefetch = json.loads(told.stdout)
    for result in (naive, prefetch):
        require_real(result, 4)
        assert result["dataset"]["stored_bytes"] > 0.45e9
        assert result["plan"]["epochs"] == 3
    # what one host has read, the others take from it
    assert prefetch["trials"][0]["bytes_requested"] < naive["trials"][0]["bytes_requested"]
    assert prefetch["trials"][0]["bytes_remote"] > 0


def test_node_counts_are_compared_inside_an_allocation(slurm: Cluster) -> None:
    told = slurm.on(
        "node1", *ALLOCATE, *RUN, "cosmoflow", "--tiny", "--nodes", "1,2,4", "--ranks-per-node", "2",
        "--reader", "prefetch", "--json",
    )  # fmt: skip
    for result, nodes in zip(json.loads(told.stdout), (1, 2, 4), strict=True):
        require_real(result, nodes)


COMMANDS = """
set -e
dlio-bench generate cdb --tiny --files 8 --out generated --nodes 4 --ranks-per-node 2 --json --no-raw >generated.json
dlio-bench verify generated
dlio-bench storage . --size 64MB --sample-size 1MB --threads 1 --ranks 1,4 --trials 1 --out storage.json
dlio-bench storage --data generated --threads 1 --nodes 2 --ranks 4 --trials 1 --out of-data.json
dlio-bench calibrate --pfs . --nodes 4 --threads 1 --sample-bytes 1MiB --size 64MB --local /tmp --json >system.json
"""


def test_the_other_commands_use_the_allocation(slurm: Cluster) -> None:
    slurm.on("node1", *ALLOCATE, "sh", "-c", COMMANDS)
    generated, system, storage, of_data = (
        json.loads((slurm.work / name).read_text())
        for name in ("generated.json", "system.json", "storage.json", "of-data.json")
    )
    assert (generated["launcher"], generated["processes"]) == ("srun", 8)
    assert storage["hosts"] == ["node1", "node2", "node3", "node4"]
    assert {(row["hosts"], row["ranks"]) for row in storage["reads"]} == {(1, 1), (4, 4)}
    assert storage["attestation"]["attested"], storage["attestation"]
    assert {(row["hosts"], row["ranks"]) for row in of_data["reads"]} == {(2, 4)}
    assert system["measured"]["by"]["hosts"] == "node1, node2, node3, node4"


def test_more_nodes_than_were_allocated_are_refused(slurm: Cluster) -> None:
    told = slurm.on("node1", "salloc", "-N2", "--exclusive", *RUN, "cdb", "--tiny", "--nodes", "4", status=2)
    assert "--nodes 4" in told.stderr
    assert "2" in told.stderr


def test_a_cancelled_job_leaves_no_rank(slurm: Cluster) -> None:
    job, says = slurm.measuring(
        "node1", *ALLOCATE, "--job-name=cancelled", *RUN, "cdb", "--tiny", *SCALE, "--reader", "prefetch",
        "--local-tier", "/tmp", "--min-seconds", "0", "--epochs", "4000", "--compute", "emulate:500ms",
    )  # fmt: skip
    nodes = [f"node{number}" for number in (1, 2, 3, 4)]
    assert all(slurm.processes(node, RANKS) for node in nodes)
    slurm.on("node2", "scancel", "--name=cancelled")
    job.communicate(timeout=PATIENCE)
    assert job.returncode == 4, says.read_text()
    assert "Traceback" not in says.read_text()
    until(lambda: not any(slurm.processes(node, RANKS) for node in nodes))
