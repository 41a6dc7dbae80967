"""`run --trace tf`: what TensorFlow did, on the clock of our spans, and what the trainers waited for."""

import json
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports.document.result import load
from dlio_bench.reports.traces import timeline
from dlio_bench.reports.traces.timeline import Timeline
from tests.processes import dlio
from tests.trace_events import Complete, checked

STEPS = 3
RUNS = {  # (workload, reader, ranks): each rank loads TensorFlow
    ("cdb", "upstream", 1): ("--compute", "emulate:50ms"),
    ("hepcnnb", "tfdata", 2): ("--compute", "train", "--exchange", "horovod"),
}
TRAINED = {"tf:network op", "tf:allreduce"}


def test_what_tensorflow_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More steps than are traced: a pipeline of other processes, and two ranks that train the smallest network."""
    for (workload, reader, ranks), compute in RUNS.items():
        dlio(
            tmp_path, "run", workload, "--tiny", "--nodes", str(ranks), "--reader", reader, *compute, "--steps", "5",
            "--validation", "none", "--trials", "1", "--warmup-trials", "0", "--no-verify", "--trace", "tf,xplane",
            "--trace-steps", str(STEPS), "--out", reader, TMPDIR=str(tmp_path),
        )  # fmt: skip
        assert not list(tmp_path.glob("dlio-bench-tf-*"))  # the profiler's files
        place = tmp_path / reader / f"{reader}-{ranks}x1"
        operations_lie_on_the_clock_of_our_spans(ranks, place, TRAINED if "train" in compute else set())
        the_table_adds_up_to_the_stalls_and_says_what_is_derived(place, capsys)
        operations_are_in_the_trace_in_rows_that_nest(place, tmp_path / "trace.json")


def operations_lie_on_the_clock_of_our_spans(ranks: int, place: Path, more: set[str]) -> None:
    result, _ = load(place)
    assert "TF TRACE" in result.marks
    spans = timeline.load(place)
    assert not spans.problems
    assert set(spans.tensorflow) == set(range(ranks))
    assert len(list(place.glob("rank-*.xplane.pb"))) == ranks
    for rank, trace in spans.tensorflow.items():
        of_rank = spans.part(spans.rank == rank)
        names = {spans.components[number].name for number in np.unique(of_rank.component)}
        assert {"tf:IteratorGetNext", "tf:PyFunc", "tf:Prefetch"} | more <= names
        assert trace.steps == trace.batches == STEPS
        assert trace.rows == of_rank.are_of(*(name for name in names if name.startswith("tf:"))).sum()
        assert (trace.outside, trace.dropped) == (0, 0)

        # every operation inside the traced part of the loop, and each GetNext inside the stall of a step
        steps = of_rank.part(of_rank.are_of("Training Iteration"))
        # apart from what the clocks drifted, which is more where the machine was busy
        assert 0 < trace.within - abs(trace.drift) / 2 < np.median(steps.end - steps.start) / 100
        [loop] = of_rank.part(of_rank.are_of("Training Loop")).start
        whole = loop + trace.began - trace.within, loop + trace.ended + trace.within
        reads = of_rank.part(of_rank.are_of("tf:PyFunc", "tf:IteratorGetNext", "tf:Prefetch", "tf:allreduce"))
        assert (reads.start >= whole[0]).all()
        assert (reads.end <= whole[1]).all()
        assert trace.ended <= steps.start[steps.step == STEPS].item() - loop
        taken = of_rank.part(of_rank.are_of("tf:IteratorGetNext"))
        stalls = of_rank.part(of_rank.are_of("Call to Next Batch"))
        for start, end in zip(taken.start, taken.end, strict=True):
            inside = (stalls.start - trace.within <= start) & (end <= stalls.end + trace.within)
            assert inside.sum() == 1

        assert trace.reported_bytes == taken.bytes.sum()
        assert trace.reported_bytes == pytest.approx(trace.delivered_bytes, rel=0.01)
        assert trace.derived_from == "spans"
        require_derived(of_rank, trace.within, result.trials[0].bytes_requested / ranks)


def require_derived(of_rank: Timeline, within: float, requested: float) -> None:
    """Calls have the bytes of our spans in them; those of calls that outlast the trace are in none."""
    calls, read = of_rank.part(of_rank.are_of("tf:PyFunc")), of_rank.part(of_rank.are_of("pread", "image file read"))
    assert 0 < calls.bytes.sum() <= requested
    inside = [
        ((calls.start - within <= start) & (end <= calls.end + within)).any()
        for start, end in zip(read.start, read.end, strict=True)
    ]
    assert calls.bytes.sum() == read.bytes[inside].sum()


def the_table_adds_up_to_the_stalls_and_says_what_is_derived(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, steps = load(place)
    capsys.readouterr()
    assert main(["trace", str(place), "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    table = shown["tensorflow"]
    stalls = steps["stall"][0][:, :STEPS]
    assert table["stall"] == pytest.approx(stalls.sum(), rel=1e-6)
    assert sum(row["seconds"] for row in table["rows"]) == pytest.approx(table["stall"])
    for step, expected in zip(table["steps"], stalls.sum(axis=0), strict=True):
        assert sum(step["seconds"].values()) == pytest.approx(expected, rel=1e-6)
    by_name = {row["operation"]: row for row in table["rows"]}
    assert by_name["tf:PyFunc"]["derived"]
    assert not by_name["tf:IteratorGetNext"]["derived"]
    assert by_name["tf:PyFunc"]["waited_for"] == "a Python function"
    assert main(["trace", str(place)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"in the first {STEPS} steps of trial 1, by TensorFlow's trace:" in text
    assert "* derived: TensorFlow reports no bytes of it" in text
    assert "Times of TensorFlow's operations are right to" in text


def operations_are_in_the_trace_in_rows_that_nest(place: Path, trace: Path) -> None:
    assert main(["trace", str(place), "--chrome", str(trace)]) == 0
    events = checked(trace.read_bytes())
    spans = timeline.load(place)
    drawn = [event for event in events.traceEvents if isinstance(event, Complete)]
    assert len(drawn) == len(spans)
    assert "tf:IteratorGetNext" in {event.name for event in drawn}
    within = {f"rank {rank}": runtime.within for rank, runtime in spans.tensorflow.items()}
    assert {rank: said["within_seconds"] for rank, said in events.otherData["tensorflow"].items()} == within
