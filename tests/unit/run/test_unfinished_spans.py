"""The spans of a run that was stopped, from what its ranks have left: on one clock, and in a trace."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dlio_bench import recorder
from dlio_bench.components import CODE
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster import clocks
from dlio_bench.harness.cluster.clocks import ClockOffset
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.measured import recording, unfinished_spans
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.machine import rescue
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.timeline import StepLog
from dlio_bench.reports.traces import timeline
from tests.trace_events import Complete, checked

DATASET = cast(Dataset, SimpleNamespace())
READER = cast(Reader, SimpleNamespace(options={}))
AHEAD = (10.0, 10.0, 12.0)  # of the clock of rank 1's host: before the first trial, when it begins, after it


def leave(work: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank leaves that was killed in its second trial; both ranks did the same at the same moments."""
    aheads = [at * rank for at in AHEAD]
    looks = iter([[ClockOffset(0.0, 0.0), ClockOffset(ahead, 1e-6)] for ahead in (aheads[0], aheads[2])])
    monkeypatch.setattr(clocks, "monotonic_offsets", lambda _: next(looks))
    monkeypatch.setattr(recording, "host_name", lambda: f"node{rank}")
    recorder.begin(work / f"folder-{rank}")
    try:
        spans = recording.Spans(DATASET, type("Rank", (Solo,), {"rank": rank, "size": 2})(), work, 3)
        track = recorder.current_track()
        assert track is not None
        for number, ahead in enumerate(((aheads[0] + aheads[2]) / 2, aheads[2])):
            spans.prepare("naive", number, READER)
            began = 1e9 * (1 + number) + ahead  # later than the true clock, which says when a trial is prepared
            times = TrialTimes(number, number, [np.zeros((2, 1), np.int64)], StepLog.empty(2, 1, epochs=1))
            times.log.clock[:] = began + np.arange(2)[:, np.newaxis] + np.linspace(0, 0.5, 7)
            times.loops.append((began, began + 2))
            track.add(CODE["pread"], began + 0.25, began + 0.5, 4096, 0, 0)
            if number == 0:
                spans.store_trial("naive", number, times)
        rescue.pack(work / f"folder-{rank}", work / f"spans-node{rank}-{os.getpid()}.zip")
    finally:
        recorder.end()


def test_ranks_whose_clocks_drifted_apart_did_the_same_at_the_same_time_and_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        leave(tmp_path, rank, monkeypatch)
    [file] = unfinished_spans.write(tmp_path, 2, ["naive"], ["a"], lambda reader: tmp_path / reader)
    spans = timeline.load(file)
    for trial in (0, 1):
        reads = spans.part((spans.trial == trial) & spans.are_of("pread"))
        assert reads.rank.tolist() == [0, 1]
        assert reads.start == pytest.approx([0.25, 0.25], abs=1e-6)
    clock = spans.clocks["node1"]
    assert (clock.ahead, clock.drift) == (11.0, 2.0)
    assert clock.within == pytest.approx(1.0, abs=1e-3)

    assert main(["trace", str(file), "--chrome", str(tmp_path / "trace.json")]) == 0
    assert "trial 2" in capsys.readouterr().out
    trace = checked((tmp_path / "trace.json").read_bytes())
    drawn = [event for event in trace.traceEvents if isinstance(event, Complete) and event.name == "pread"]
    assert [(event.pid, event.ts) for event in drawn] == [(0, pytest.approx(0.25e6)), (1, pytest.approx(0.25e6))]
    assert any("before naive had done all its trials" in problem for problem in trace.otherData["problems"])

    assert main(["trace", str(file), "--trial", "1", "--json", "--chrome", str(tmp_path / "first.json")]) == 0
    [document] = json.loads(capsys.readouterr().out)
    assert document["files"][0]["spans"] > len(drawn)
    assert main(["trace", str(file), "--trial", "3", "--chrome", str(tmp_path / "none.json")]) == 2
    assert "trials 1, 2" in capsys.readouterr().err
