"""Ranks that stand still are found and named; those that wait, work, or are in an announced step are not."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import life as rank_side
from dlio_bench.harness.cluster.life import Life, Pulse
from dlio_bench.harness.cluster.watch import Watch, parse_timeout
from dlio_bench.harness.training.compute import wait
from tests.processes import until


def pulse(rank: int | None, *, idle: float = 0.0, waiting: bool = False, patience: float = 0.0) -> dict[str, Any]:
    who = {"rank": rank, "host": f"n{rank}", "process": 70 + (rank or 0)}
    return who | {"idle": idle, "waiting": waiting, "patience": patience, "ranks": 3, "mute": False}


def verdict(*heard: tuple[float, dict[str, Any]], now: float, timeout: float = 10.0) -> str | None:
    watch = Watch(timeout, 0.0)
    for when, one in heard:
        watch.hear(one, when)
    return watch.verdict(now)


def test_a_rank_that_is_heard_no_more_is_named_and_those_that_wait_for_it_are_not() -> None:
    said = verdict((20, pulse(0)), (40, pulse(1, idle=20, waiting=True)), now=40)
    assert said is not None
    assert "Rank 0 on n0 (process 70) gave no sign of life for 10 s" in said
    assert "ank 1" not in said
    assert "--timeout" in said
    assert verdict((35, pulse(0)), (40, pulse(1, idle=20, waiting=True)), now=40) is None


def test_a_rank_that_lives_and_does_not_move_is_named() -> None:
    said = verdict((40, pulse(0, idle=11)), (40, pulse(1, idle=39, waiting=True)), now=40)
    assert said is not None
    assert said.startswith("Rank 0 on n0 (process 70) stood still for 10 s")


def test_ranks_that_fell_silent_together_are_named_together_and_as_silent() -> None:
    lost = (20, pulse(0, idle=2)), (21, pulse(1, idle=2)), (30, pulse(2, idle=10, waiting=True))
    assert verdict(*lost, now=29) is None  # silent ranks may move
    said = verdict(*lost, now=30.5)
    assert said is not None
    assert said.startswith("Rank 0 on n0 (process 70), rank 1 on n1 (process 71) gave no sign of life")
    assert "ank 2" not in said


def test_ranks_that_all_wait_for_one_that_never_came() -> None:
    assert verdict((40, pulse(0, idle=5, waiting=True)), (40, pulse(1, idle=39, waiting=True)), now=40) is None
    said = verdict(*[(40, pulse(rank, idle=11, waiting=True)) for rank in (0, 2)], now=40)
    assert str(said).startswith("Rank 1 did not come, and the 2 ranks that did have waited for 10 s")
    # while MPI starts they can tell nothing
    starting = [(20, pulse(rank, waiting=True) | {"mute": True}) for rank in (1, 2)]
    assert verdict(*starting, now=29) is None
    assert str(verdict(*starting, now=31)).startswith("Rank 0 did not come")
    assert verdict(now=11) is None
    assert "No rank has begun" in str(verdict(now=61))
    assert "A rank on" in str(verdict((1, pulse(None)), now=12))  # before MPI has told which


def test_a_wait_with_a_limit_of_its_own_keeps_that() -> None:
    heard = (20, pulse(0)), (40, pulse(1, idle=20, waiting=True, patience=30))
    assert verdict(*heard, now=40) is None
    assert "for 30 s" in str(verdict(*heard, now=51))


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Life, list[dict[str, Any]]]]:
    """The life of a rank, and what is told of it twenty times a second."""
    life, told = Life(), []
    monkeypatch.setattr(rank_side, "life", life)
    monkeypatch.setattr(rank_side, "_SHORTEST", 0.05)
    rank_side.write_limit(tmp_path, 0.1)  # the job lives
    beating = Pulse(0.1, {"rank": 3}, told.append, tmp_path)
    yield life, told
    beating.close()


def test_idleness_grows_until_the_rank_moves(rank: tuple[Life, list[dict[str, Any]]], tmp_path: Path) -> None:
    life, told = rank

    def stands_still() -> bool:
        return bool(told) and told[-1]["idle"] > 0.15

    until(stands_still)
    life.begins(600)
    until(lambda: not told[-1]["idle"])
    count = len(told)
    until(lambda: len(told) >= count + 6)
    assert {pulse["idle"] for pulse in told[count:]} == {0}  # of announced length
    life.until = 0.0
    with life.waits():
        until(lambda: stands_still() and told[-1]["waiting"])
    until(stands_still)  # the end of a wait has counted as progress
    end = threading.Event()

    def write() -> None:
        while not end.wait(0.01):
            (tmp_path / "file").write_bytes(bytes(50_000))

    writing = threading.Thread(target=write)
    writing.start()
    until(lambda: not told[-1]["idle"])
    end.set()
    writing.join()


def test_emulated_compute_announces_its_length() -> None:
    begun = time.monotonic()
    wait(0.01)
    assert rank_side.life.until >= begun + 0.01


def test_a_time_without_unit_or_too_short_is_refused() -> None:
    assert [parse_timeout(text) for text in ("3s", "10min", "0")] == [3, 600, 0]
    for text in ("600", "0.1s", "soon"):
        with pytest.raises(UsageError):
            parse_timeout(text)
