"""What schedulers say of nodes, tasks and GPUs, and the scale that a command takes from it."""

from pathlib import Path

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.allocation import Allocation, counts_by_node, default_scale, find

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}


@pytest.mark.parametrize(
    ("env", "ranks", "gpus"),
    [
        ({"SLURM_TASKS_PER_NODE": "64(x4)"}, None, None),  # no tasks were asked for: processors
        ({"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "2(x4)"}, 2, None),
        ({"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x4)"}, 2, None),
        ({"SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "64(x4)"}, 1, None),
        ({"SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "64(x4)"}, None, None),
        ({"SLURM_GPUS_ON_NODE": "4"}, None, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:3"}, None, 3),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1", "SLURM_NTASKS_PER_NODE": "6"}, 6, 3),
    ],
)
def test_tasks_and_gpus_of_a_slurm_job(env: dict[str, str], ranks: int | None, gpus: int | None) -> None:
    assert find(JOB | env) == Allocation("slurm", 4, ranks, gpus, job="7")


def test_ranks_that_are_there_come_before_a_scheduler() -> None:
    assert find(JOB | {"DLIO_BENCH_STARTED": "2 3 /tmp/a b"}) == Allocation("launched", 2, 3)


def test_numbers_by_node_are_expanded() -> None:
    assert counts_by_node("2(x3),1") == [2, 2, 2, 1]
    assert counts_by_node("16") == [16]
    assert counts_by_node("") == counts_by_node("two") == counts_by_node("2(x3") == []


def test_host_files_name_a_host_for_each_rank(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("n1\nn1\nn2\nn2\n")
    assert find({"PBS_NODEFILE": str(hosts), "PBS_JOBID": "9.pbs"}) == Allocation("pbs", 2, 2, job="9.pbs")
    hosts.write_text("batch5\n" + "h01\n" * 42 + "h02\n" * 42)  # a launch node: the lines are cores
    assert find({"LSB_DJOB_HOSTFILE": str(hosts)}) == Allocation("lsf", 2)


def test_what_nobody_names_comes_from_the_allocation() -> None:
    given = Allocation("slurm", 4, ranks_per_node=2, gpus_per_node=8, job="7")
    everything = default_scale(given)
    assert (everything.nodes, everything.ranks_per_node) == (4, 2)
    assert everything.origin == "4 nodes and 2 tasks per node of the Slurm allocation 7"
    assert default_scale(given, nodes=True).origin == "2 tasks per node of the Slurm allocation 7"
    assert default_scale(given, nodes=True, ranks_per_node=True).origin == ""
    gpus = default_scale(Allocation("slurm", 1, gpus_per_node=8, job="7"))
    assert gpus.ranks_per_node == 8
    assert gpus.origin == "1 node and 8 GPUs per node of the Slurm allocation 7"
    assert default_scale(Allocation("hostfile", 2), otherwise=5).ranks_per_node == 5
    assert default_scale(None, otherwise=5).ranks_per_node == 1


def test_unequal_tasks_need_a_word_of_the_user() -> None:
    given = find(JOB | {"SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "2(x3),1"})
    with pytest.raises(UsageError, match=r"the Slurm allocation 7 has 2 or 1 tasks.*--ranks-per-node"):
        default_scale(given)
    assert default_scale(given, ranks_per_node=True).nodes == 4
