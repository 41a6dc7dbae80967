"""What recording a span costs: `pytest tests/perf/test_recorder.py --benchmark-only`, ns over ADDS.

The clock is read twice around each span besides, which a benchmark of its own states.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dlio_bench import recorder
from dlio_bench.components import CODE
from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.machine.temp_folders import temp_folder

ADDS, ROUNDS = 10_000, 50
PREAD = CODE["pread"]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[None]:
    with temp_folder("dlio-bench-test-", SHARED_MEMORY if SHARED_MEMORY.is_dir() else tmp_path) as folder:
        recorder.begin(folder)
        recorder.prepare(1)
        yield
        recorder.end()


def add() -> None:
    track = recorder.current_track()
    assert track is not None
    for number in range(ADDS):
        track.add(PREAD, 1.0, 2.0, 115_000, number, 7)


def add_with_clock() -> None:
    track, clock = recorder.current_track(), time.perf_counter
    assert track is not None
    for number in range(ADDS):
        begun = clock()
        track.add(PREAD, begun, clock(), 115_000, number, 7)


def look() -> None:
    for _ in range(ADDS):
        if track := recorder.current_track():
            track.add(PREAD, 1.0, 2.0)


def loop() -> None:
    for _ in range(ADDS):
        pass


@pytest.mark.benchmark(group=f"{ADDS} spans")
@pytest.mark.parametrize("work", [add, add_with_clock])
@pytest.mark.usefixtures("recording")
def test_recording(benchmark: BenchmarkFixture, work: Callable[[], None]) -> None:
    drained = []

    def empty() -> None:
        drained.append(sum(len(rows.table) for rows in recorder.drain()))

    benchmark.pedantic(work, setup=empty, rounds=ROUNDS, warmup_rounds=1)
    empty()
    assert set(drained[1:]) == {ADDS}
    assert recorder.lost_spans() == 0


@pytest.mark.benchmark(group=f"{ADDS} spans")
@pytest.mark.parametrize("work", [look, loop])
def test_while_nothing_is_recorded(benchmark: BenchmarkFixture, work: Callable[[], None]) -> None:
    benchmark.pedantic(work, rounds=ROUNDS)
    assert recorder.current_track() is None
