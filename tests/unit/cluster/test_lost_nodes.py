"""Nodes that a job under Slurm lost are told from what srun says, and from what it leaves out."""

from dlio_bench.harness.cluster.outcome import lost_nodes

HOSTS = {0: "node1", 1: "node1", 2: "node2", 3: "node2", 4: "node3.site", 5: "node3.site"}
CANCELLED = """srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-node1: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-11-22T16:03:25 ***
srun: error: node2: task 2: Killed
srun: error: node1: tasks 0-1: Killed
srun: error: node2: task 3: Exited with exit code 14
"""
GIVEN_UP = "srun: error: Timed out waiting for job step to complete\n"


def test_a_node_of_whose_ranks_nothing_is_heard_is_named() -> None:
    sentences = lost_nodes(CANCELLED + GIVEN_UP, HOSTS, "nothing was measured")
    assert sentences is not None
    assert sentences.startswith("node3.site did not tell how rank 4, rank 5 ended")
    assert "nothing was measured" in sentences


def test_a_time_limit_that_is_over_does_not_blame_ranks_that_have_ended() -> None:
    sentences = lost_nodes(CANCELLED, HOSTS, "nothing was measured", waited=True)
    assert sentences is not None
    assert sentences.startswith("node3.site did not tell")
    assert lost_nodes("", HOSTS, "nothing was measured", waited=True) is None


def test_a_node_that_slurm_gave_up_is_named() -> None:
    sentences = lost_nodes(f"srun: error: Node failure on node3\n{CANCELLED}", {}, "nothing was measured")
    assert sentences is not None
    assert "gave up node3," in sentences


UNREACHABLE = """PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-node1-572@0,0] on node node1
  Remote daemon: [prterun-node1-572@0,2] on node node3

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself.
"""


def test_a_host_to_which_mpirun_lost_its_connection_is_named() -> None:
    sentences = lost_nodes(UNREACHABLE, HOSTS, "nothing was measured")
    assert sentences is not None
    assert sentences.startswith("node3 was lost, with rank 4, rank 5 (")
    assert sentences.endswith("nothing was measured.")


def test_nothing_is_made_up() -> None:
    assert lost_nodes(CANCELLED, HOSTS, "") is None  # srun was still waiting, or has heard of all
    assert lost_nodes(CANCELLED + GIVEN_UP, {}, "") is None  # ranks that told nothing of themselves
    of_each_node = CANCELLED + "srun: error: node3: tasks 4,5: Killed\n" + GIVEN_UP
    assert lost_nodes(of_each_node, HOSTS, "") is None
    assert lost_nodes("a rank printed: tasks 0-1: Killed", HOSTS, "") is None
