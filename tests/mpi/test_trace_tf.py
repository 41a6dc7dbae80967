"""`run --trace tf`: what TensorFlow did, on the clock of our spans, and what the trainers waited for."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports import timeline
from dlio_bench.reports.result import load
from dlio_bench.reports.timeline import Timeline
from tests.processes import dlio
from tests.trace_events import Complete, checked

RANKS, STEPS, READERS = 2, 5, ("upstream", "tfdata")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training by two ranks, of more steps than are traced, with two pipelines of tf.data: one of other processes."""
    out = tmp_path_factory.mktemp("traced")
    dlio(
        out, "run", "cdb", "--tiny", "--nodes", str(RANKS), "--reader", ",".join(READERS), "--compute", "train",
        "--exchange", "horovod", "--steps", "7", "--validation", "none", "--trials", "1", "--warmup-trials", "0",
        "--trace", "tf,xplane", "--trace-steps", str(STEPS), "--out", str(out / "run"), TMPDIR=str(out),
    )  # fmt: skip
    assert not list(out.glob("dlio-bench-tf-*"))  # the profiler's files
    return out / "run"


@pytest.mark.parametrize("reader", READERS)
def test_operations_of_tensorflow_lie_on_the_clock_of_our_spans(folder: Path, reader: str) -> None:
    place = folder / f"{reader}-{RANKS}x1"
    result, _ = load(place)
    assert "TF TRACE" in result.marks
    spans = timeline.load(place)
    assert not spans.problems
    assert set(spans.tensorflow) == set(range(RANKS))
    assert len(list(place.glob("rank-*.xplane.pb"))) == RANKS
    for rank, trace in spans.tensorflow.items():
        of_rank = spans.part(spans.rank == rank)
        names = {spans.components[number].name for number in np.unique(of_rank.component)}
        assert {"tf:IteratorGetNext", "tf:PyFunc", "tf:Prefetch", "tf:network op", "tf:allreduce"} <= names
        assert trace.steps == trace.batches == STEPS
        assert trace.rows == of_rank.of(*(name for name in names if name.startswith("tf:"))).sum()
        assert (trace.outside, trace.dropped) == (0, 0)

        # every operation inside the traced part of the loop, and each GetNext inside the stall of a step
        steps = of_rank.part(of_rank.of("Training Iteration"))
        assert 0 < trace.within < np.median(steps.end - steps.start) / 100
        [loop] = of_rank.part(of_rank.of("Training Loop")).start
        whole = loop + trace.began - trace.within, loop + trace.ended + trace.within
        reads = of_rank.part(of_rank.of("tf:PyFunc", "tf:IteratorGetNext", "tf:Prefetch", "tf:allreduce"))
        assert (reads.start >= whole[0]).all()
        assert (reads.end <= whole[1]).all()
        assert trace.ended <= steps.start[steps.step == STEPS].item() - loop
        taken = of_rank.part(of_rank.of("tf:IteratorGetNext"))
        stalls = of_rank.part(of_rank.of("Call to Next Batch"))
        for start, end in zip(taken.start, taken.end, strict=True):
            inside = (stalls.start - trace.within <= start) & (end <= stalls.end + trace.within)
            assert inside.sum() == 1

        assert trace.reported_bytes == taken.bytes.sum()
        assert trace.reported_bytes == pytest.approx(trace.delivered_bytes, rel=0.01)
        assert trace.derived_from == "spans"
        require_derived(of_rank, trace.within, result.trials[0].bytes_requested / RANKS)


def require_derived(of_rank: Timeline, within: float, requested: float) -> None:
    """Calls have the bytes of our spans in them; those of calls that outlast the trace are in none."""
    calls, read = of_rank.part(of_rank.of("tf:PyFunc")), of_rank.part(of_rank.of("pread", "image file read"))
    assert 0 < calls.bytes.sum() <= requested
    inside = [
        ((calls.start - within <= start) & (end <= calls.end + within)).any()
        for start, end in zip(read.start, read.end, strict=True)
    ]
    assert calls.bytes.sum() == read.bytes[inside].sum()


def test_the_table_adds_up_to_the_stalls_and_says_what_is_derived(folder: Path) -> None:
    for reader in READERS:
        place = folder / f"{reader}-{RANKS}x1"
        _, steps = load(place)
        [shown] = json.loads(dlio(folder, "trace", str(place), "--json").stdout)
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
        text = " ".join(dlio(folder, "trace", str(place)).stdout.split())
        assert f"in the first {STEPS} steps of trial 1, by TensorFlow's trace:" in text
        assert "* derived: TensorFlow reports no bytes of it" in text
        assert "Times of TensorFlow's operations are right to" in text


def test_without_tensorflow_there_is_nothing_to_trace(refused: Callable[..., str]) -> None:
    assert "--reader upstream or tfdata or --compute train" in refused("run", "cdb", "--tiny", "--trace", "tf")


def test_operations_of_tensorflow_are_in_the_trace_in_rows_that_nest(folder: Path, tmp_path: Path) -> None:
    place, trace = folder / f"tfdata-{RANKS}x1", tmp_path / "trace.json"
    assert main(["trace", str(place), "--chrome", str(trace)]) == 0
    events = checked(trace.read_bytes())
    spans = timeline.load(place)
    drawn = [event for event in events.traceEvents if isinstance(event, Complete)]
    assert len(drawn) == len(spans)
    assert "tf:IteratorGetNext" in {event.name for event in drawn}
    within = {f"rank {rank}": runtime.within for rank, runtime in spans.tensorflow.items()}
    assert {rank: said["within_seconds"] for rank, said in events.otherData["tensorflow"].items()} == within
