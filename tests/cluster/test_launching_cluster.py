"""How ranks are started inside a Slurm allocation: scale, plug-ins, ranks' output, ranks that srun has started."""

import json
import sys
from typing import Any

from tests.cluster.cluster import Cluster
from tests.processes import DLIO

TINY = ("run", "cdb", "--tiny", "--trials", "1", "--warmup-trials", "0")
SALLOC = ("salloc", "-N4", "--ntasks-per-node", "2")


def result(cluster: Cluster, out: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((cluster.work / out / "prefetch-4x2" / "result.json").read_text())
    return document


def test_the_allocation_gives_nodes_and_ranks_and_srun_leads_their_lines(slurm: Cluster) -> None:
    done = slurm.on("node1", *SALLOC, *DLIO, *TINY, "--out", "given", "--launcher-args=--quiet")
    assert "4 nodes and 2 tasks per node of the Slurm allocation" in done.stderr
    environment = result(slurm, "given")["environment"]
    assert environment["rank_hosts"] == [f"node{rank // 2 + 1}" for rank in range(8)]
    assert "--quiet" in environment["launcher"]["argv"]


def test_a_plugin_that_does_not_connect_ranks_is_named_with_what_does(slurm: Cluster) -> None:
    done = slurm.on("node1", *SALLOC, *DLIO, *TINY, "--out", "alone", status=4, SLURM_MPI_TYPE="none")
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("dlio-bench: ")]
    assert "8 ranks were asked for, but they came up in worlds of 1" in message
    assert "`srun --mpi=list` has " in message
    assert "pmix" in message


def test_ranks_that_srun_has_started_run_the_command(slurm: Cluster) -> None:
    # srun with the wheel's Open MPI sometimes ends in MPI_Init by signal 11: nobody could retry it but its user
    line = f"{sys.executable} -m dlio_bench {' '.join(TINY)} --launcher none --out joined"
    step = f"srun --mpi=pmix --overcommit {line}"
    slurm.on("node1", *SALLOC, "sh", "-c", f"for again in 1 2 3 4; do {step} && exit; rm -rf joined; done; exit 1")
    environment = result(slurm, "joined")["environment"]
    assert environment["rank_hosts"] == [f"node{rank // 2 + 1}" for rank in range(8)]
    assert environment["launcher"]["name"] == "none"


def test_copies_that_srun_has_started_are_refused(slurm: Cluster) -> None:
    done = slurm.on("node1", *SALLOC, "srun", "-n2", *DLIO, *TINY, "--out", "refused", status=2)
    assert done.stderr.count("A launcher has started this command 2 times") == 1
    assert not (slurm.work / "refused").exists()
