"""How many threads read: it follows the latency that was found, and goes back to the cores for bytes from memory."""

import pytest

from dlio_bench.harness.readers.threads import (
    ROUND_CHUNKS,
    ROUNDS,
    Concurrency,
    Readers,
    ThreadTime,
    Window,
    next_window,
    readers,
)


@pytest.mark.parametrize("waiting", [2, 30])
def test_threads_that_wait_for_storage_are_as_many_as_their_chunks_call_for(waiting: int) -> None:
    found = readers(ThreadTime(1e-3, 1e-4), 1e-3, 0.0, most=32, waiting=waiting, spare_cores=1)
    assert found == Readers(waiting, trainer=False, waits=True)


@pytest.mark.parametrize(("spare", "hidden"), [(0, 0), (1, 1), (3, 3), (-1, 0)])
def test_bytes_from_memory_are_read_by_cores_that_no_trainer_has(spare: int, hidden: int) -> None:
    alone = readers(ThreadTime(1.0, 0.9), 0.01, 0.0, most=8, waiting=4, spare_cores=spare)
    assert alone == Readers(hidden, trainer=True)
    behind = readers(ThreadTime(1.0, 0.9), 0.01, 0.02, most=8, waiting=4, spare_cores=spare)
    assert behind == Readers(hidden + 1, trainer=False)
    small = readers(ThreadTime(1.0, 0.9), 0.01, 0.0, most=8, waiting=4, spare_cores=spare, chunk_bytes=7_000)
    assert small == Readers(0, trainer=True)  # threads would only take turns in the interpreter


@pytest.mark.parametrize(
    ("before", "reading", "seconds", "threads"),
    [
        (Window(4, 0.01), 4.0, 0.010, 8),  # no queue: as many again
        (Window(4, 0.01), 4.0, 0.0118, 5),  # half a chunk in a queue: half as many more as are served at once
        (Window(1, 0.01), 1.0, 0.010, 2),
        (Window(30, 0.01), 30.0, 0.010, 32),  # up to the most
        (Window(4, 0.01), 1.5, 0.010, 4),  # they had nothing to read
        (Window(4, 0.01), 4.0, 0.016, 4),  # 1.5 chunks in a queue
        (Window(32, 0.01), 32.0, 0.160, 4),  # 30 of 32
        (Window(32, 0.01, ROUNDS), 32.0, 0.040, 8),  # as many as are served at once, to see them without a queue
        (Window(1, 0.01, ROUNDS), 1.0, 0.050, 1),
    ],
)
def test_the_window_follows_the_queue(before: Window, reading: float, seconds: float, threads: int) -> None:
    assert next_window(before, reading, seconds, 32).threads == threads


def test_the_fastest_round_is_forgotten_in_time() -> None:
    window = Window(8, 0.01)
    for _ in range(ROUNDS + 1):
        window = next_window(window, window.threads, 0.04, 32)  # storage has become slower
    assert next_window(window, window.threads, 0.04, 32).fastest == 0.04


def test_all_read_for_the_first_batch_and_then_as_many_as_did_not_wait_in_a_queue() -> None:
    window = Concurrency(32)
    assert window.threads == 1
    window.note_first_chunk(1.0, 0.1, 6)
    assert window.threads == 6
    rounds = [window.begin(1.0) for _ in range(6)]
    ended = [window.end(1.0 + 0.1 * (chunk + 1), 0.1 * (chunk + 1), rounds[chunk]) for chunk in range(6)]
    assert (ended, window.threads) == ([False] * 5 + [True], 1)


def test_chunks_of_an_earlier_round_and_those_from_no_file_tell_nothing() -> None:
    window = Concurrency(32)
    window.note_first_chunk(0.0, 1.0, 2)
    old, *rounds = (window.begin(0.0) for _ in range(3))
    assert [window.end(1.0, 1.0, one) for one in rounds] == [False, True]
    assert not any(window.end(2.0, seconds, old) for seconds in [1.0] * ROUND_CHUNKS)
    assert not any(window.end(3.0, 0.0, window.begin(2.0)) for _ in range(ROUND_CHUNKS))


def test_a_fixed_number_stays() -> None:
    window = Concurrency(7, fixed=True)
    window.note_first_chunk(0.0, 1.0, 3)
    assert not any(window.end(1.0, 1.0, window.begin(0.0)) for _ in range(20))
    assert window.threads == 7


def test_what_was_spent_before_counts_half_each_time() -> None:
    slow, fast = ThreadTime(1.0, 0.01), ThreadTime(0.01, 0.01)
    found = [slow]
    for _ in range(10):
        found.append(fast.and_half_of(found[-1]))
    assert [spent.from_memory for spent in found[:3]] == [False] * 3
    assert found[-1].from_memory
