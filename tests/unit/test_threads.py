"""How many threads read: it follows the latency that was found, and goes back to the cores for bytes from memory."""

import pytest

from dlio_bench.harness.ground.defaults import MOST_THREADS
from dlio_bench.harness.readers.threads import Spent, readers

READ = 100e-6  # seconds that a thread computes to take over what has come


def threads(waiting: float, *, most: int = MOST_THREADS, spare: int = 1) -> int:
    """Threads after reads of `waiting` seconds each, without compute."""
    return readers(Spent(waiting + READ, READ), waiting + READ, 0.0, most=most, spare_cores=spare).threads


def test_threads_follow_the_latency_up_to_the_most_there_may_be() -> None:
    found = [threads(waiting) for waiting in (400e-6, 1e-3, 2e-3, 5e-3, 50e-3)]
    assert found == sorted(found)
    assert 4 <= found[0] < found[1] < found[2] < found[3] == found[4] == MOST_THREADS
    assert threads(5e-3, most=6) == 6
    assert threads(5e-3, spare=0) == MOST_THREADS  # those who sleep need no core


@pytest.mark.parametrize(("spare", "hidden"), [(0, 0), (1, 1), (3, 3), (-1, 0)])
def test_bytes_from_memory_are_read_by_cores_that_no_trainer_has(spare: int, hidden: int) -> None:
    assert threads(0.0, spare=spare) == hidden
    alone = readers(Spent(1.0, 0.9), 0.01, 0.0, most=8, spare_cores=spare)
    assert alone.trainer
    behind = readers(Spent(1.0, 0.9), 0.01, 0.02, most=8, spare_cores=spare)
    assert (behind.threads, behind.trainer) == (hidden + 1, False)


def test_what_was_spent_before_counts_half_each_time() -> None:
    slow, fast = Spent(1.0, 0.01), Spent(0.01, 0.01)
    found = [slow]
    for _ in range(10):
        found.append(fast.and_half_of(found[-1]))
    assert [spent.from_memory for spent in found[:3]] == [False] * 3
    assert found[-1].from_memory
