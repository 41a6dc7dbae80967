"""One suite for every way ranks talk. Alone it tests Solo; `tests/mpi/test_worlds.py` runs it under mpirun as well."""

import os
import time

import numpy as np
import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm, connect

WORLD = int(os.environ.get("DLIO_TEST_WORLD", "1"))  # ranks this file was launched with


@pytest.fixture(scope="module")
def comm() -> Comm:
    return connect(WORLD)


def test_ranks_are_numbered_and_share_this_machine(comm: Comm) -> None:
    assert comm.size == comm.host_size == WORLD
    assert comm.allgather(comm.rank) == comm.allgather(comm.host_rank) == list(range(WORLD))


def test_gather_brings_values_to_rank_0_alone(comm: Comm) -> None:
    found = comm.gather({"rank": comm.rank})
    assert found == ([{"rank": rank} for rank in range(WORLD)] if comm.rank == 0 else None)


def test_total_adds_elementwise(comm: Comm) -> None:
    found = comm.total(np.array([1, comm.rank, 2**40], dtype=np.uint64))
    assert found.tolist() == [WORLD, WORLD * (WORLD - 1) // 2, WORLD * 2**40]


def test_nobody_leaves_a_barrier_before_the_last_has_come(comm: Comm) -> None:
    comm.barrier()
    came = time.monotonic()  # one clock: the ranks share a machine
    if comm.rank == WORLD - 1:
        time.sleep(0.1)
        came = time.monotonic()
    comm.barrier()
    left = time.monotonic()
    assert left >= max(comm.allgather(came))


def test_waiting_in_a_barrier_leaves_the_cpu_free(comm: Comm) -> None:
    comm.barrier()
    if comm.rank == 0:
        time.sleep(0.5)
    busy = time.process_time()
    comm.barrier()
    assert time.process_time() - busy < 0.25


def test_a_world_of_another_size_is_refused(comm: Comm) -> None:
    with pytest.raises(EnvironmentFailure, match=f"{WORLD + 1} ranks were asked for"):
        connect(WORLD + 1)
