"""The spans of many ranks go into one file in the memory of a few; they have a limit, and what is beyond it is told."""

import itertools
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench import recorder
from dlio_bench.components import CODE
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.measured import recording
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.timeline import StepLog
from dlio_bench.reports.traces import timeline

RANKS, TRIALS, STEPS, ADDS, PHASES = 16, 3, 10, 10_000, 7
DATASET = cast(Dataset, SimpleNamespace(manifest=SimpleNamespace(files=[SimpleNamespace(name="a"), None, None])))
READER = cast(Reader, SimpleNamespace(options={"threads": 1}))


class First(Solo):
    """Rank 0 of many, who all record the same."""

    size = RANKS

    def allgather(self, value: Any) -> list[Any]:
        return [value] * RANKS

    def blocks(self, values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        for _ in range(RANKS):
            yield values[np.newaxis]


@pytest.fixture
def spans(tmp_path: Path) -> Iterator[recording.Spans]:
    recorder.begin(tmp_path / "spans", most_rows=100_000)
    yield recording.Spans(DATASET, First(), tmp_path, TRIALS)
    recorder.end()


def trial(spans: recording.Spans, number: int, adds: int) -> None:
    """One trial, whose trainer computed for half of each step, saved nothing, and read a number of times."""
    spans.prepare("naive", number, READER)
    times = TrialTimes(number, number, [np.zeros((STEPS, 1), np.int64)], StepLog.empty(STEPS, 1, epochs=1))
    times.log.clock[:] = 100.0 * number + np.arange(STEPS)[:, np.newaxis] + np.array([0, 0, 0, 0, 0.5, 0.5, 0.6])
    times.loops.append((100.0 * number, 100.0 * number + STEPS))
    track = recorder.current_track()
    assert track is not None
    for read in range(adds):
        track.add(CODE["pread"], 100.0 * number, 100.0 * number + 1, read, file=0)
    spans.store_trial("naive", number, times)


def test_the_spans_of_all_ranks_are_written_in_the_memory_of_a_few(
    spans: recording.Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "AT_ONCE", 1000)
    for number in range(TRIALS):
        trial(spans, number, ADDS)
    tracemalloc.start()
    spans.write("naive", tmp_path / "spans.npz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    columns = 8 * RANKS * TRIALS * ADDS
    assert most < 1_000_000 < columns  # bytes of one column of all
    assert not list((tmp_path / "spans").glob(f"*{recorder.STORED}"))

    whole = timeline.load(tmp_path / "spans.npz")
    assert not [problem for problem in whole.problems if "room" in problem]
    reads = whole.part(whole.are_of("pread"))
    for number in range(TRIALS):
        of_trial = reads.part(reads.trial == number)
        assert np.array_equal(np.sort(of_trial.bytes), np.repeat(np.arange(ADDS), RANKS))
        assert set(of_trial.start.tolist()) == {0.0}  # since rank 0 began its loop in that trial
    assert len(reads) == RANKS * TRIALS * ADDS
    computing = whole.part(whole.are_of("compute"))
    assert len(computing) == RANKS * TRIALS * STEPS
    assert set(computing.step.tolist()) == set(range(STEPS))


def test_spans_beyond_the_limit_are_counted_and_told_and_the_next_reader_has_room(
    spans: recording.Spans, tmp_path: Path
) -> None:
    for number in range(20):
        trial(spans, number, ADDS)
    spans.write("naive", tmp_path / "spans.npz")
    whole = timeline.load(tmp_path / "spans.npz")
    kept = int(whole.are_of("pread").sum()) // RANKS
    assert 0 < kept < 100_000
    assert whole.lost[0] + len(whole) // RANKS == 20 * (ADDS + 2 * STEPS + 1)
    assert f"rank 0 had no room for {whole.lost[0]} spans" in whole.problems
    trial(spans, 0, ADDS)
    spans.write("naive", tmp_path / "next.npz")
    assert timeline.load(tmp_path / "next.npz").are_of("pread").sum() == RANKS * ADDS


def test_a_small_shared_memory_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, temporary, free = Path("/dev/shm"), tmp_path, {Path("/dev/shm"): 10**12, tmp_path: 10**12}
    monkeypatch.setattr(recording, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(recording, "free_bytes", free.get)
    assert recording.room(4) == (shared, recorder.MOST_ROWS)
    free[shared] = 64 << 20  # as a container has
    assert recording.room(1) == (shared, (16 << 20) // recorder.ROW.itemsize)
    assert recording.room(4) == (temporary, recorder.MOST_ROWS)
    free[temporary] = 0
    assert recording.room(4) == (shared, (4 << 20) // recorder.ROW.itemsize)


def test_a_folder_without_room_records_nothing_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    recorder.begin(tmp_path / "spans")
    try:
        monkeypatch.setattr(os, "posix_fallocate", full)
        track = recorder.current_track()
        assert track is not None
        for start in itertools.islice(itertools.count(), 7):
            track.add(1, start, start + 1)
        assert recorder.lost_spans() == 7
        assert recorder.array((3, 2)).tolist() == np.zeros((3, 2)).tolist()
        assert not list((tmp_path / "spans").iterdir())
    finally:
        recorder.end()
