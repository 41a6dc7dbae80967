"""What the launching command concludes from its ranks' signs of life: which rank keeps the others waiting."""

from typing import Any

import pytest

from dlio_bench.harness.cluster.watch import START_SECONDS, Watch

LIMIT = 10.0


def pulse(rank: int, idle: float = 0.0, *, waiting: bool = False, mute: bool = False) -> dict[str, Any]:
    return {
        "host": "n",
        "process": 100 + rank,
        "rank": rank,
        "ranks": 2,
        "patience": 0.0,
        "idle": idle,
        "waiting": waiting,
        "mute": mute,
    }


def verdicts(watch: Watch, begin: float, end: float) -> list[str]:
    """What it concludes from `begin` to `end`, looking ten times a second."""
    looks = (begin + tenth / 10 for tenth in range(int((end - begin) * 10) + 1))
    return [verdict for verdict in map(watch.verdict, looks) if verdict]


def test_a_rank_that_falls_silent_while_all_wait_is_named() -> None:
    """It was idle before its last sign of life: all are idle for the whole limit before it is silent so long."""
    watch = Watch(LIMIT, now=0.0)
    watch.record_pulse(pulse(0, idle=1.5, waiting=True), now=20.0)
    watch.record_pulse(pulse(1, idle=1.0, waiting=True), now=20.0)
    for second in range(21, 40):
        watch.record_pulse(pulse(1, idle=second - 19.0, waiting=True), now=float(second))
        for verdict in verdicts(watch, second, second + 0.9):
            assert verdict.startswith("Rank 0 on n (process 100) gave no sign of life for 10 s"), (second, verdict)
            assert second == 30
            return
    pytest.fail("it concluded nothing")


def test_a_rank_that_never_came_is_named_once_all_others_have_waited() -> None:
    watch = Watch(LIMIT, now=0.0)
    for second in range(90):
        watch.record_pulse(pulse(1, idle=float(second), waiting=True), now=float(second))
        if verdict := watch.verdict(second + 0.5):
            assert second == START_SECONDS  # it may have to tell why, when it has looked long enough for the folder
            assert verdict.startswith("Rank 0 did not come, and the 1 ranks that did have waited for 1m00s")
            return
    pytest.fail("it concluded nothing")


def test_a_rank_that_reads_nothing_is_told_from_those_that_wait_for_it() -> None:
    watch = Watch(LIMIT, now=0.0)
    for second in range(30):
        watch.record_pulse(pulse(0, idle=float(second)), now=float(second))
        watch.record_pulse(pulse(1, idle=float(second), waiting=True), now=float(second))
        if verdict := watch.verdict(second + 0.5):
            assert second == LIMIT
            assert verdict.startswith("Rank 0 on n (process 100) stood still for 10 s")
            return
    pytest.fail("it concluded nothing")


def test_a_rank_that_waits_in_the_start_of_mpi_is_not_blamed_for_its_silence() -> None:
    watch = Watch(LIMIT, now=0.0)
    watch.record_pulse(pulse(0, waiting=True, mute=True), now=0.0)
    for second in range(30):
        watch.record_pulse(pulse(1, idle=0.0), now=float(second))
        assert watch.verdict(float(second)) is None


def test_ranks_that_never_began_have_the_time_that_python_takes_to_start() -> None:
    watch = Watch(LIMIT, now=0.0)
    assert watch.verdict(START_SECONDS) is None
    assert "No rank has begun 1m00s after the launch" in str(watch.verdict(START_SECONDS + 0.1))
