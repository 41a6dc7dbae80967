"""Every rank serves every other. Alone a rank asks itself; `tests/mpi/test_worlds.py` runs it under mpirun as well."""

import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.peers import Peers, Serving
from tests.ranks import WORLD

SAMPLES, SIZE = 40, 115_000


def content(rank: int, sample: int) -> bytes:
    return np.random.default_rng([rank, sample]).bytes(SIZE)


@pytest.fixture
def file(comm: Comm) -> Iterator[int]:
    """This rank's samples, one after another."""
    with tempfile.TemporaryFile() as kept:
        kept.write(b"".join(content(comm.rank, sample) for sample in range(SAMPLES)))
        kept.flush()
        yield kept.fileno()


def test_every_rank_gets_the_samples_of_every_other(comm: Comm, file: int) -> None:
    token = comm.allgather(os.urandom(16))[0]

    def answer(sample: int) -> tuple[int, int, int] | None:
        return (file, sample * SIZE, SIZE) if sample < SAMPLES else None

    def ask(number: int) -> None:
        draws = np.random.default_rng([comm.rank, number])
        outs = [memoryview(bytearray(SIZE)) for _ in range(8)]
        for _ in range(10):
            rank, samples = int(draws.integers(WORLD)), draws.integers(SAMPLES + 4, size=8).tolist()
            found = peers.fetch(rank, samples, outs)
            assert found == [sample < SAMPLES for sample in samples]
            for sample, out, here in zip(samples, outs, found, strict=True):
                assert not here or out == content(rank, sample)

    with closing(Serving(answer, token=token)) as serving:
        addresses = comm.allgather(serving.address)
        with closing(Peers(addresses, token)) as peers, ThreadPoolExecutor(3) as pool:
            assert list(pool.map(ask, range(3))) == [None] * 3
            assert peers.dead == set()
        comm.barrier()  # nobody stops serving while others ask
    assert sum(comm.allgather(serving.requests)) == WORLD * 3 * 10 * 8
    assert sum(comm.allgather(serving.bytes)) == SIZE * sum(comm.allgather(serving.requests - serving.misses))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("peers-")]


def test_a_rank_that_serves_no_more_is_dead_for_all_others(comm: Comm, file: int) -> None:
    token = comm.allgather(os.urandom(16))[0]
    last, first_out = WORLD - 1, memoryview(bytearray(SIZE))
    serving = Serving(lambda sample: (file, sample * SIZE, SIZE), token=token)
    with closing(serving), closing(Peers(comm.allgather(serving.address), token)) as peers:
        assert peers.fetch(last, [2], [first_out]) == [True]
        comm.barrier()
        if comm.rank == last:
            serving.close()
        comm.barrier()
        second_out = memoryview(bytearray(SIZE))
        assert peers.fetch(last, [3], [second_out]) == [False]
        assert peers.dead == {last}
        if WORLD > 1:
            assert peers.fetch(0, [3], [second_out]) == [True]
            assert second_out == content(0, 3)
        comm.barrier()
