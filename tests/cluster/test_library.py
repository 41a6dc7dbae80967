"""A loader of a program whose ranks are on two hosts: each is a node, and they give each other samples."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dlio_bench.datagen.generate import generate
from dlio_bench.harness.plan.orders import Shape, find_order
from tests.cluster.cluster import Cluster
from tests.datasets import layout
from tests.mpi.library_rank import BATCH, EPOCHS

PROGRAM = Path(__file__).parents[1] / "mpi" / "library_rank.py"
MPIRUN = ("mpirun", "--allow-run-as-root", "--host", "node1:2,node2:2", "-n", "4")
QUIET: Mapping[str, str] = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,uct,openib"}


def test_ranks_on_two_hosts_share_the_samples(hosts: Cluster) -> None:
    out = hosts.work / "loader"
    out.mkdir()
    dataset = generate(layout("hepcnnb"), 2, out / "hep", seed=os.getpid(), workers=1)
    hosts.on("node1", *MPIRUN, sys.executable, str(PROGRAM), "delivered", str(dataset.folder), str(out), **QUIET)
    shape = Shape(dataset.training_samples, 4, BATCH)
    for rank in range(4):
        told = json.loads((out / f"{rank}.json").read_text())["delivered"]
        plan = [find_order("global-shuffle")(shape, rank, epoch, 5).tolist() for epoch in range(EPOCHS)]
        assert (told["ranks"], told["epochs"], told["rest"]) == (4, plan, plan[1][2:])
