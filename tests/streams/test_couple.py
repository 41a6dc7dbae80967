"""`dlio-bench couple` through ADIOS2: BP files and SST streams, with several ranks and twins, and what ends them."""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.grayscott.solver import slab
from dlio_bench.errors import DataError, StreamTimeout
from dlio_bench.harness.commands.coupling.ways.streams import StreamInlet, StreamOutlet
from dlio_bench.reports.coupling import document as couple
from tests import processes
from tests.processes import PATIENCE, descendants, gone, ranks_of, until

SIZE = 8
ENGINES = ("bp", "sst")


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return processes.start(folder, "couple", "grayscott", *words, TMPDIR=str(folder))


def test_every_way_brings_every_output_to_every_twin(tmp_path: Path) -> None:
    processes.dlio(
        tmp_path, "couple", "grayscott", "--tiny", "--producers", "2", "--consumers", "2", "--queue", "1",
        "--emulate-pfs", "bandwidth=200MB/s", "--out", "out", TMPDIR=str(tmp_path),
    )  # fmt: skip
    document = couple.load(tmp_path / "out")
    assert document.ways == ["files", "bp", "sst"]
    for way in document.ways:
        [trial] = couple.trials_of(document, way)
        assert [side.outputs for side in trial.sides if side is not None] == [document.outputs] * 4
    of_bp, of_sst = couple.traffic(document, "bp"), couple.traffic(document, "sst")
    assert of_bp is not None
    assert of_sst is not None
    fields = document.outputs * document.output_bytes
    assert of_bp.written_bytes > fields
    assert of_bp.read_bytes > 2 * fields
    assert (of_sst.written_bytes, of_sst.read_bytes) == (0, 0)  # it passes the file system by
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("victim", [0, 1], ids=["the solver", "a twin"])
def test_a_side_of_a_stream_that_is_killed_ends_the_command_and_nothing_is_left(victim: int, tmp_path: Path) -> None:
    process = start(
        tmp_path, "--through", "sst", "--size", "32", "--steps", "4000", "--plotgap", "20", "--trials", "99", "--out",
        "out",
    )  # fmt: skip
    until(lambda: list(tmp_path.glob("dlio-bench-couple-*/meeting/sst-*/*.sst")), process, "nothing is coupled")
    time.sleep(0.5)
    started = descendants(process.pid)
    os.kill(ranks_of(process.pid)[victim], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, out + err
    assert "rank" in [line for line in err.splitlines() if line.startswith("dlio-bench: ")][-1]
    gone(started)
    assert not list(tmp_path.glob("dlio-bench-*"))


def state(number: int) -> np.ndarray:
    return np.random.default_rng(number).random((2, SIZE, SIZE, SIZE))


class Producers(threading.Thread):
    """A solver of two ranks that gives out some outputs."""

    def __init__(self, folder: Path, engine: str, numbers: list[int], queue: int = 1) -> None:
        super().__init__(daemon=True)
        self._given = folder, engine, numbers, queue
        self.given = 0

    def run(self) -> None:
        folder, engine, numbers, queue = self._given
        parts = [slab(SIZE, 2, rank) for rank in (0, 1)]
        with ThreadPoolExecutor() as pool:  # each waits for the twin
            opened = lambda rank: StreamOutlet(folder, engine, rank, parts[rank], 1, queue)  # noqa: E731 - it is short
            outlets = list(enumerate(pool.map(opened, (0, 1))))
        for number in numbers:
            for rank, outlet in outlets:
                part = parts[rank]
                outlet.put(number, np.ascontiguousarray(state(number)[:, part.first : part.first + part.planes]))
            self.given = number
        for _, outlet in outlets:
            outlet.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_late_and_slow_twin_gets_every_output_and_a_queue_holds_the_solver_back(engine: str, tmp_path: Path) -> None:
    solver = Producers(tmp_path, engine, [1, 2, 3, 4, 5])
    solver.start()
    time.sleep(0.5)  # late
    inlet = StreamInlet(tmp_path, engine, [slab(SIZE, 2, rank) for rank in (0, 1)], 60.0)
    out = np.empty((2, SIZE, SIZE, SIZE))
    for number in (1, 2, 3, 4, 5):
        time.sleep(0.2)  # slow
        assert engine != "sst" or solver.given <= number + 1
        inlet.take(number, out)
        assert np.array_equal(out, state(number))
    inlet.close()
    solver.join(60)
    assert not solver.is_alive()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_output_that_is_missing_or_too_many_is_told(engine: str, tmp_path: Path) -> None:
    parts, out = [slab(SIZE, 2, rank) for rank in (0, 1)], np.empty((2, SIZE, SIZE, SIZE))
    Producers(tmp_path, engine, [1, 3, 4], queue=9).start()
    inlet = StreamInlet(tmp_path, engine, parts, 60.0)
    inlet.take(1, out)
    with pytest.raises(DataError, match="output 2 was to come, and 3 came"):
        inlet.take(2, out)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_solver_that_does_not_come_is_told_in_time(engine: str, tmp_path: Path) -> None:
    with pytest.raises(StreamTimeout):
        StreamInlet(tmp_path, engine, [slab(SIZE, 1, 0)], 0.2)
