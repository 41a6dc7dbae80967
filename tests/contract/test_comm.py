"""One suite for every way ranks talk. Alone it tests Solo; `tests/mpi/test_worlds.py` runs it under mpirun as well."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import entry, mpi
from dlio_bench.harness.cluster.comm import Comm, Outgoing, run_on_all_ranks
from dlio_bench.harness.cluster.mpi import connect
from tests.ranks import WORLD

WAIT = 0.3  # seconds that a rank keeps the others waiting


@contextmanager
def cpu_left_free() -> Iterator[None]:
    """To wait takes little of a core: less than half of it, even where the last rank has lost its own for long."""
    began, busy = time.monotonic(), time.process_time()
    yield
    assert time.process_time() - busy < max(WAIT, time.monotonic() - began) / 2


def test_ranks_are_numbered_and_share_this_machine(comm: Comm) -> None:
    assert comm.size == comm.host_size == WORLD
    assert comm.allgather(comm.rank) == comm.allgather(comm.host_rank) == list(range(WORLD))


def test_gather_brings_values_to_rank_0_alone(comm: Comm) -> None:
    found = comm.gather({"rank": comm.rank})
    assert found == ([{"rank": rank} for rank in range(WORLD)] if comm.rank == 0 else None)


def test_total_adds_elementwise(comm: Comm) -> None:
    found = comm.total(np.array([1, comm.rank, 2**40], dtype=np.uint64))
    assert found.tolist() == [WORLD, WORLD * (WORLD - 1) // 2, WORLD * 2**40]


def test_greatest_compares_elementwise(comm: Comm) -> None:
    assert comm.greatest(np.array([comm.rank, -comm.rank, 0.5])).tolist() == [WORLD - 1, 0, 0.5]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_blocks_bring_values_to_rank_0_a_few_ranks_at_a_time(
    comm: Comm, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.full((2, 5), comm.rank, np.float64)
    monkeypatch.setattr("dlio_bench.harness.cluster.comm.BLOCK_BYTES", at_once * values.nbytes)
    found = [block.copy() for block in comm.blocks(values)]
    sizes = [min(at_once, WORLD - first) for first in range(0, WORLD, at_once)]
    assert [len(block) for block in found] == (sizes if comm.rank == 0 else [])
    if found:
        assert np.concatenate(found)[:, 1, 4].tolist() == list(range(WORLD))
    assert sum(block.size for block in comm.blocks(np.array(2.0))) == (WORLD if comm.rank == 0 else 0)
    assert sum(block.size for block in comm.blocks(np.zeros(0))) == 0


def test_nobody_leaves_a_barrier_before_the_last_has_come(comm: Comm) -> None:
    comm.barrier()
    came = time.monotonic()  # one clock: the ranks share a machine
    if comm.rank == WORLD - 1:
        time.sleep(0.1)
        came = time.monotonic()
    comm.barrier()
    left = time.monotonic()
    assert left >= max(comm.allgather(came))


@pytest.mark.parametrize("ranks_a_host", [1, 2, 3])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_hosts_of_any_size_meet_with_and_without_shared_memory(
    comm: Comm, ranks_a_host: int, shared_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = comm
    if WORLD > 1:
        from mpi4py import MPI

        world = MPI.COMM_WORLD.Dup()
        part = mpi.Mpi(world, world.Split(world.rank // ranks_a_host), comm.cores)
    if not shared_memory:
        monkeypatch.setattr(mpi, "make_page", lambda: None)
    draws = np.random.default_rng(comm.rank)
    rounds = []
    for pause in draws.choice([0, 0, 1e-4, 3e-3], size=30):  # some wait awake, some asleep
        time.sleep(pause)
        came = time.monotonic()
        part.barrier()
        rounds.append((came, time.monotonic()))
    for ranks in zip(*comm.allgather(rounds), strict=True):
        assert min(left for _, left in ranks) >= max(came for came, _ in ranks)


def test_waiting_in_a_barrier_leaves_the_cpu_free(comm: Comm) -> None:
    comm.barrier()
    if comm.rank == 0:
        time.sleep(WAIT)
    with cpu_left_free():
        comm.barrier()


def test_every_message_arrives_whole_and_those_of_a_source_in_order(comm: Comm) -> None:
    sizes = [0, 1, 3_000_000, 77, 5]
    buffer = memoryview(bytearray(max(sizes)))  # one for all, refilled for each message
    everybody = range(comm.size)

    def outgoing() -> Iterator[Outgoing]:
        for number, size in enumerate(sizes):
            buffer[:size] = bytes([comm.rank * len(sizes) + number]) * size
            yield buffer[:size], everybody

    for _ in range(2):  # a second one does not hear the first
        found: dict[int, list[bytes]] = {rank: [] for rank in everybody}
        comm.exchange(
            outgoing(),
            memoryview(bytearray(max(sizes))),
            comm.size * len(sizes),
            lambda source, content, found=found: found[source].append(bytes(content)),
        )
        for source, contents in found.items():
            expected = [bytes([source * len(sizes) + number]) * size for number, size in enumerate(sizes)]
            assert contents == expected


def test_ranks_in_a_circle_swap_arrays_in_order(comm: Comm) -> None:
    for step in range(3):
        sent = np.full((4, 1000), 10 * comm.rank + step, np.float64)
        received = np.empty((4, 1000))
        comm.swap(sent, (comm.rank + 1) % WORLD, received, (comm.rank - 1) % WORLD, 60.0)
        assert np.unique(received).tolist() == [10 * ((comm.rank - 1) % WORLD) + step]


def test_an_exchange_may_be_one_sided_or_empty(comm: Comm) -> None:
    comm.exchange(iter(()), memoryview(b""), 0, lambda *_: None)
    heard: list[tuple[int, bytes]] = []
    outgoing = iter([(memoryview(bytes([n])), [comm.size - 1]) for n in range(9)] if comm.rank == 0 else [])
    expected = 9 if comm.rank == comm.size - 1 else 0
    comm.exchange(
        outgoing, memoryview(bytearray(1)), expected, lambda source, content: heard.append((source, bytes(content)))
    )
    assert heard == [(0, bytes([n])) for n in range(expected)]


def test_waiting_for_a_message_leaves_the_cpu_free(comm: Comm) -> None:
    comm.barrier()

    def late() -> Iterator[Outgoing]:
        time.sleep(WAIT)
        yield memoryview(b"late"), range(comm.size)

    outgoing = late() if comm.rank == 0 else iter(())
    with cpu_left_free():
        comm.exchange(outgoing, memoryview(bytearray(4)), 1, lambda *_: None)


def test_work_done_together_gives_everybody_every_result(comm: Comm) -> None:
    assert run_on_all_ranks(comm, lambda: comm.rank**2) == [rank**2 for rank in range(comm.size)]


def test_a_failure_of_one_rank_is_raised_on_all(comm: Comm) -> None:
    def work() -> None:
        if comm.rank == comm.size - 1:
            raise UsageError("the last rank minds")

    with pytest.raises(UsageError, match="the last rank minds"):
        run_on_all_ranks(comm, work)


def test_the_code_is_read_once_for_ranks_that_share_it_and_each_other_is_named(
    comm: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(entry, "code_digest", lambda: read.append("") or "right")
    entry.require_same_code(comm, "right")
    assert sum(comm.allgather(len(read))) == 1
    if comm.rank == WORLD - 1:  # another installation
        monkeypatch.setattr(entry, "code_place", lambda: "elsewhere")
        monkeypatch.setattr(entry, "code_digest", lambda: "wrong")
    with pytest.raises(EnvironmentFailure, match=rf"Rank {WORLD - 1} on \S+ has another code"):
        entry.require_same_code(comm, "right")


def test_a_world_of_another_size_is_refused(comm: Comm) -> None:
    with pytest.raises(EnvironmentFailure, match=f"{WORLD + 1} ranks were asked for"):
        connect(WORLD + 1)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_sums_come_to_all_or_to_the_first(comm: Comm, kind: type[np.floating[Any]]) -> None:
    values = (np.arange(1000) % 7 + comm.rank).astype(kind)  # whole numbers: exact in every kind
    expected = WORLD * (np.arange(1000) % 7) + WORLD * (WORLD - 1) // 2
    sums = np.zeros_like(values)
    comm.all_sum(values, sums, 60)
    assert sums.tolist() == expected.tolist()
    sums[:] = -1
    comm.sum_to_first(values, sums, 60)
    assert sums.tolist() == (expected.tolist() if comm.rank == 0 else [-1] * 1000)
    for first in range(WORLD):
        sums[:] = -1
        comm.sum_to_first(values, sums, 60, first=first)
        assert sums.tolist() == (expected.tolist() if comm.rank == first else [-1] * 1000)
    comm.all_sum(values[:0], sums[:0], 60)


def test_float16_overflows_to_infinity_quietly(comm: Comm) -> None:
    sums = np.zeros(1, np.float16)
    comm.all_sum(np.full(1, 60000, np.float16), sums, 60)
    assert sums[0] == (60000 if WORLD == 1 else np.inf)


def test_content_of_the_first_reaches_all(comm: Comm) -> None:
    content = np.arange(5, dtype=np.uint32) * (comm.rank + 1)
    comm.from_first(content, 60)
    assert content.tolist() == [0, 1, 2, 3, 4]
    for first in range(WORLD):
        content[:] = comm.rank
        comm.from_first(content, 60, first=first)
        assert content.tolist() == [first] * 5


def test_a_part_of_the_ranks_talks_by_itself(comm: Comm) -> None:
    pair = comm.split(comm.rank // 2)
    assert pair is not None
    assert pair.size == min(2, WORLD)
    assert pair.allgather(comm.rank) == [rank for rank in range(WORLD) if rank // 2 == comm.rank // 2]
    first = comm.split(0 if pair.rank == 0 else None)
    assert (first is None) == (pair.rank != 0)
    if first is not None:
        assert first.allgather(comm.rank) == list(range(0, WORLD, 2))


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(comm: Comm) -> None:
    part = comm.split(0)  # of its own: what is left open in it disturbs nobody
    assert part is not None
    if comm.rank == 0 and WORLD > 1:
        with pytest.raises(TimeoutError):
            part.all_sum(np.ones(9, np.float32), np.ones(9, np.float32), 0.2)
    comm.barrier()


def test_waiting_for_a_sum_leaves_the_cpu_free(comm: Comm) -> None:
    comm.barrier()
    if comm.rank == 0:
        time.sleep(WAIT)
    with cpu_left_free():
        comm.all_sum(np.ones(9, np.float32), np.empty(9, np.float32), 60)


def test_several_threads_of_a_rank_may_talk(comm: Comm) -> None:
    assert comm.several_threads()
