"""`run --trace spans` when a rank dies: what all ranks had recorded until then is kept, and nothing is left behind."""

import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dlio_bench.components import CODE
from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.run.measured import recording
from dlio_bench.harness.commands.run.measured.unfinished_spans import unpack_left
from dlio_bench.harness.machine import rescue
from dlio_bench.reports.traces import timeline
from dlio_bench.reports.traces.timeline import TRAINER
from tests.processes import PATIENCE, gone, pids_of, start, until

RANKS = 2


def folders(ranks: list[int]) -> list[Path]:
    """Where these ranks record, if they are behind their first trial."""
    chosen = []
    for below in (recording.SHARED_MEMORY, Path(tempfile.gettempdir())):
        for note in below.glob(f"{recording.PREFIX}*/{recording.NOW}"):
            with suppress(FileNotFoundError, msgspec.DecodeError):  # others come and go
                now = msgspec.json.decode(note.read_bytes(), type=recording.Now)
                if now.process in ranks and now.trial > 0:
                    chosen.append(note.parent)
    return chosen


def stopped(ranks: list[int], places: list[Path], scratch: Path) -> bool:
    """Stop these ranks, if all are in the midst of the same trial behind the first: there they stay then."""
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    until(lambda: all(Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T" for rank in ranks))
    trials = {in_the_midst_of(place, scratch / "left.zip") for place in places}
    if len(trials) == 1 and trials.pop() > 0:
        return True
    for rank in ranks:
        os.kill(rank, signal.SIGCONT)
    time.sleep(0.1)  # in which they go on
    return False


def in_the_midst_of(place: Path, archive: Path) -> int:
    """The trial of a stopped rank, if it has made some steps in it, and read; else 0."""
    rescue.pack(place, archive)
    rank = unpack_left(archive, "prefetch")
    if rank is None or rank.steps is None or not 2 < rank.steps[0] < rank.steps[1]:
        return 0
    reads = [table["component"] == CODE["pread"] for trial, _, table in rank.kept.tables if trial == rank.now.trial]
    return rank.now.trial if np.concatenate(reads).sum() > 2 else 0


def kill_one(process: int, ranks: list[int]) -> None:
    del process
    os.kill(ranks[-1], signal.SIGKILL)


def terminate(process: int, ranks: list[int]) -> None:
    del ranks
    os.kill(process, signal.SIGTERM)


@pytest.mark.parametrize("harm", [kill_one, terminate])
def test_spans_of_all_ranks_are_there_until_one_died_or_the_run_was_stopped(
    harm: Callable[[int, list[int]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    process = start(
        tmp_path, "run", "cdb", "--tiny", "--nodes", str(RANKS), "--reader", "prefetch", "--epochs", "100",
        "--trials", "200", "--warmup-trials", "1", "--compute", "emulate:8ms", "--trace", "spans", "--out", str(out),
        DLIO_BENCH_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    command = f"dlio_bench.harness.commands.run.measured.rank {out.resolve()}"
    until(lambda: len(folders(pids_of(command))) == RANKS, process)
    ranks, rescuers = pids_of(command), pids_of(f"{out.resolve()}/work-")
    places = folders(ranks)
    until(lambda: stopped(ranks, places, tmp_path), process)
    harm(process.pid, ranks)
    _, err = process.communicate(timeout=PATIENCE)
    gone([*ranks, *rescuers])
    assert process.returncode == 4
    assert "Traceback" not in err
    assert not [place for place in places if place.exists()]
    [file] = out.glob("*/spans-unfinished.npz")
    assert f"What ranks did until then: dlio-bench trace {shlex.quote(str(file))}." in err
    assert ("Go on with: dlio-bench run" in err) == (harm is terminate)
    assert not list(out.glob("work-*"))

    spans = timeline.load(file)
    assert spans.ranks == RANKS
    assert not [problem for problem in spans.problems if "without a span" in problem or "nothing is left" in problem]
    names = [track.thread for track in spans.tracks]
    last = int(spans.trial.max())
    for rank in range(RANKS):
        for trial in (0, last):
            part = spans.part((spans.rank == rank) & (spans.trial == trial))
            phases = part.part(part.are_of("Call to Next Batch", "compute"))
            assert len(phases) > 2, (rank, trial)
            assert {names[track] for track in np.unique(phases.track)} == {TRAINER}
            assert len(part.part(part.are_of("pread"))) > 2
            assert (part.end >= part.start).all()
    assert main(["trace", str(file)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "the run ended before prefetch had done all its trials" in told
    assert f"in trial {last + 1}, of 1600 steps, " in told
