"""TensorFlow's operations among the spans of a rank: where their bytes come from, and the table made of them."""

import numpy as np
import pytest

from dlio_bench import tensorflow_operations
from dlio_bench.components import CODE, COMPONENTS, Component
from dlio_bench.harness.commands.run.measured.runtime_rows import derive_bytes
from dlio_bench.harness.training.tf_trace import ClockAlignment, Operations
from dlio_bench.recorder import NO_EPOCH, NOWHERE, ROW
from dlio_bench.reports.traces import components, tensorflow
from dlio_bench.reports.traces.timeline import RuntimeTrace, Timeline, Track

WITHIN = 0.001


def operations(*rows: tuple[str, float, float]) -> Operations:
    names = tuple(dict.fromkeys(name for name, _, _ in rows))
    return Operations(
        components=names,
        threads=("tensorflow pool",),
        component=np.array([names.index(name) for name, _, _ in rows], dtype=np.int64),
        thread=np.zeros(len(rows), dtype=np.int64),
        start=np.array([start for _, start, _ in rows]),
        end=np.array([end for _, _, end in rows]),
        bytes=np.full(len(rows), -1, dtype=np.int64),
        events=len(rows),
        dropped=0,
        alignment=ClockAlignment(0.0, WITHIN, 0.0),
    )


def span(name: str, start: float, end: float, size: int) -> np.ndarray:
    row = np.zeros(1, ROW)
    row["component"], row["start"], row["end"], row["bytes"] = CODE[name], start, end, size
    return row


CALLS = operations(("tf:PyFunc", 0.0, 1.0), ("tf:PyFunc", 0.5, 2.0), ("tf:Prefetch", 0.0, 2.0))


def test_bytes_of_our_spans_go_to_the_calls_around_them() -> None:
    inside_one, inside_both = span("pread", 1.5, 2.0 + WITHIN / 2, 10), span("library read", 0.6, 0.9, 101)
    sizes, source = derive_bytes(CALLS, [inside_one, inside_both], requested=7)
    assert (sizes.tolist(), source) == ([51, 60, 0], "spans")
    # a span that lies in no call, one that encloses reads, and one of a tier tell nothing
    others = [span("pread", 3, 4, 10), span("Time to Read Single Image", 0.6, 0.9, 9), span("tier read", 0.6, 0.9, 9)]
    assert derive_bytes(CALLS, others, requested=7)[0].tolist() == [4, 3, 0]


def test_without_spans_bytes_of_the_counters_go_to_what_reads() -> None:
    sizes, source = derive_bytes(operations(("tf:PyFunc", 0, 1), ("tf:ReadFile", 0, 1), ("tf:TFRecord", 1, 2)), [], 100)
    assert (sizes.tolist(), source) == ([0, 50, 50], "counters")
    assert derive_bytes(CALLS, [], 7)[1] == "counters"
    assert derive_bytes(operations(("tf:Prefetch", 0, 1)), [], 7) == (pytest.approx([0]), "")


def timeline(rows: list[tuple[int, str, int, float, float, int]], ranks: int) -> Timeline:
    """rows: rank, component, step, start, end, bytes; every one in a thread of its own."""
    components = (*COMPONENTS, *tensorflow_operations.OPERATIONS)
    numbers = {component.name: number for number, component in enumerate(components)}
    count = len(rows)
    return Timeline(
        trial=np.zeros(count, np.int32),
        track=np.arange(count, dtype=np.int32),
        component=np.array([numbers[name] for _, name, *_ in rows]),
        epoch=np.full(count, NO_EPOCH),
        step=np.array([step for _, _, step, *_ in rows]),
        file=np.full(count, NOWHERE),
        bytes=np.array([size for *_, size in rows]),
        offset=np.full(count, NOWHERE),
        start=np.array([start for *_, start, _, _ in rows]),
        end=np.array([end for *_, end, _ in rows]),
        ranks=ranks,
        tracks=[Track(rank, "host", 1, str(number)) for number, (rank, *_) in enumerate(rows)],
        components=[Component(component.name, component.kind, "") for component in components],
        files={},
        clocks={},
        lost={},
        tensorflow={
            rank: RuntimeTrace(
                trial=0, steps=2, began=0.0, ended=10.0, within=1e-6, drift=0.0, events=9, rows=3, dropped=0,
                outside=0, batches=2, reported_bytes=101, delivered_bytes=100, derived_from="counters",
            )
            for rank in range(ranks)
        },
    )  # fmt: skip


def test_the_table_of_several_ranks_says_who_was_waited_for() -> None:
    whole = [(rank, "Training Iteration", step, 5.0 * step, 5.0 * step + 5, 0) for rank in (0, 1) for step in range(3)]
    stalls = [(rank, "Call to Next Batch", step, 5.0 * step, 5.0 * step + 2, 0) for rank in (0, 1) for step in range(3)]
    spans = timeline(
        [
            *whole, *stalls,
            (0, "tf:ReadFile", NOWHERE, 0.0, 1.0, 70),
            (0, "tf:DecodeJpeg", NOWHERE, 0.5, 1.0, 0),
            (1, "remote read", NOWHERE, 5.0, 6.5, 30),
            (0, "all-reduce", NOWHERE, 0.0, 9.0, 500),
            (0, "records", 0, 0.0, 2.0, 70),
            (0, "tf:IteratorGetNext", 0, 0.0, 1.0, 101),
            (1, "tf:ReadFile", NOWHERE, 10.0, 12.0, 99),  # in a step that was not traced
        ],
        ranks=2,
    )  # fmt: skip
    shown = tensorflow.table(spans, emulated=True)
    assert shown is not None
    assert shown.stall == pytest.approx(8)
    rows = {row.operation: row for row in shown.rows}
    assert rows["tf:ReadFile"].seconds == pytest.approx(0.75)
    assert (rows["tf:ReadFile"].bytes, rows["tf:ReadFile"].derived) == (70, True)
    assert rows["tf:ReadFile"].spans == 1  # that of the other rank lies behind its trace
    of_trial = {row.component: row for row in components.component_rows(spans, 0)}
    assert [name for name, row in of_trial.items() if row.derived] == ["tf:ReadFile"]
    assert " 169 B* " in components.render(spans, 0)
    assert rows["tf:ReadFile"].waited_for == "the emulated file system"
    assert rows["tf:DecodeJpeg"].waited_for == "decoding"
    assert (rows["remote read"].waited_for, rows["remote read"].seconds) == ("other ranks", pytest.approx(1.5))
    assert rows["remote read"].derived is False
    assert not {"all-reduce", "records"} & rows.keys()
    assert (rows["tf:IteratorGetNext"].bytes, rows["tf:IteratorGetNext"].derived) == (101, False)
    assert rows[tensorflow.NOTHING].seconds == pytest.approx(8 - 1 - 1.5)
    assert [(step.step, step.stall) for step in shown.steps] == [(0, pytest.approx(4)), (1, pytest.approx(4))]
    text = tensorflow.render(shown)
    assert max(map(len, text.splitlines())) <= 80
    assert "+1.00 %" in text


def test_a_run_without_tensorflow_has_no_table() -> None:
    assert tensorflow.table(timeline([(0, "Call to Next Batch", 0, 0.0, 1.0, 0)], ranks=0)) is None
