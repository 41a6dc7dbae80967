"""Spans are recorded by each thread into a file that outlives the process, and come back as they were added."""

import _thread
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio_bench import recorder
from dlio_bench.components import CODE, COMPONENTS
from dlio_bench.recorder import NO_EPOCH, NOWHERE, ROWS
from tests.processes import PATIENCE, until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    recorder.begin(tmp_path / "spans")
    yield tmp_path / "spans"
    recorder.end()


def test_nothing_is_recorded_until_it_is_asked_for() -> None:
    assert recorder.current_track() is None
    assert recorder.drain() == []
    assert recorder.lost_spans() == 0


def test_what_a_thread_adds_comes_back_with_its_name_once(place: Path) -> None:
    recorder.prepare(2)

    def work() -> None:
        track = recorder.current_track()
        assert track is recorder.current_track()
        assert track is not None
        track.epoch, track.step = 3, 7
        track.add(CODE["pread"], 1.5, 2.5, 4096, 1 << 40, 12)

    thread = threading.Thread(target=work, name="reader-0")
    thread.start()
    thread.join()
    here = recorder.current_track()
    assert here is not None
    here.add(CODE["compute"], 2.0, 3.0)
    drained = {rows.thread: rows for rows in recorder.drain()}
    assert drained["reader-0"].table.tolist() == [(1.5, 2.5, 4096, 1 << 40, 12, 3, 7, CODE["pread"])]
    [row] = drained["MainThread"].table.tolist()
    assert row == (2.0, 3.0, 0, NOWHERE, NOWHERE, NO_EPOCH, NOWHERE, CODE["compute"])
    assert all(rows.process == os.getpid() for rows in drained.values())
    assert recorder.drain() == []
    here.add(CODE["compute"], 4.0, 5.0)  # into a file that had other rows before
    assert [rows.table.tolist()[0][:2] for rows in recorder.drain()] == [(4.0, 5.0)]
    assert len(list(place.iterdir())) == 2


def test_threads_that_follow_each_other_share_a_track_and_those_at_once_have_names_of_their_own(place: Path) -> None:
    def call(start: int, together: threading.Barrier, over: threading.Event) -> None:
        track = recorder.current_track()
        together.wait()
        assert track is not None
        assert (track.epoch, track.step) == (NO_EPOCH, NOWHERE)
        track.epoch, track.step = start, 0
        track.add(CODE["pread"], start, start + 1)
        del track
        over.set()

    running = _thread._count()
    for first in (0, 2, 4):  # as TensorFlow does: Python knows nothing of these threads
        together, over = threading.Barrier(2), [threading.Event(), threading.Event()]
        for number in range(2):
            _thread.start_new_thread(call, (first + number, together, over[number]))
        for event in over:
            assert event.wait(PATIENCE)
        until(lambda: _thread._count() <= running)  # one of an earlier test may have ended, too
    drained = {rows.thread: rows.table["start"].tolist() for rows in recorder.drain()}
    assert sorted(drained) == ["library", "library-1"]
    assert sorted(starts for of_track in drained.values() for starts in of_track) == [0, 1, 2, 3, 4, 5]
    assert [len(starts) for starts in drained.values()] == [3, 3]
    assert len(list(place.iterdir())) == 2


def test_a_thread_goes_on_in_another_file_until_there_may_be_no_more(tmp_path: Path) -> None:
    recorder.begin(tmp_path / "spans", most_rows=2 * ROWS)
    try:
        track = recorder.current_track()
        assert track is not None
        for number in range(2 * ROWS + 5):
            track.add(1, number, number + 1)
        assert recorder.lost_spans() == 5
        drained = recorder.drain()
        assert [row for rows in drained for row in rows.table["start"].tolist()] == list(range(2 * ROWS))
    finally:
        recorder.end()


def test_rows_of_a_process_that_is_killed_are_there(place: Path) -> None:
    killed = (
        "import os, signal; from dlio_bench import recorder; recorder.join(); t = recorder.current_track(); "
        "t.add(1, 1.0, 2.0); t.add(2, 2.0, 3.0, 9); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", killed], check=False).returncode == -9
    [rows] = recorder.of_others(place, os.getpid())
    assert rows.table["end"].tolist() == [2.0, 3.0]
    assert rows.table["bytes"].tolist() == [0, 9]
    (place / "1-0.rows").write_bytes(b"no rows")
    assert len(list(recorder.of_others(place, os.getpid()))) == 1


def test_names_of_components_are_different() -> None:
    assert len(CODE) == len(COMPONENTS)
