"""Events of TensorFlow's runtime trace as rows: a made-up XSpace, without TensorFlow."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dlio_bench import tensorflow_operations as table
from dlio_bench.components import KINDS
from dlio_bench.harness.training.tf_trace import Marker, Operations, alignment, marker_name, operations, union_of

TRACE_BEGAN = 5_000_000_000  # by the process's clock, ns
MICRO = 1e-6


class Stat(SimpleNamespace):
    """A value of an event, as protobuf has it."""

    def WhichOneof(self, _: str) -> str:  # noqa: N802 - protobuf's name
        return "str_value"


class Space:
    """A trace that is written line by line; times in microseconds since it began."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.stats: dict[str, int] = {}
        self.lines: list[Any] = []

    def line(self, ident: int, name: str, *events: tuple[str, float, float, dict[str, str]]) -> "Space":
        rows = [
            SimpleNamespace(
                metadata_id=self.names.setdefault(event, len(self.names)),
                offset_ps=round(start * 1e6),
                duration_ps=round((end - start) * 1e6),
                stats=[
                    Stat(metadata_id=self.stats.setdefault(stat, len(self.stats)), str_value=value)
                    for stat, value in stats.items()
                ],
            )
            for event, start, end, stats in events
        ]
        self.lines.append(SimpleNamespace(id=ident, name=name, timestamp_ns=1000, events=rows))
        return self

    def read(self, *, drift: int = 0) -> Operations:
        """With markers at 0 and 900 us in the first line, whose clock the process gains `drift` ns on meanwhile."""
        at = (0.0, 900.0)
        markers = [[marker(round(begin * 1000) + moved)] for begin, moved in zip(at, (0, drift), strict=True)]
        named = [(marker_name(group, 0), begin, begin + 1, {}) for group, begin in enumerate(at)]
        self.lines[0].events += Space.line(self, 7, "python", *named).lines.pop().events
        plane = SimpleNamespace(
            name="/host:CPU",
            lines=self.lines,
            event_metadata={number: SimpleNamespace(name=name) for name, number in self.names.items()},
            stat_metadata={number: SimpleNamespace(name=name) for name, number in self.stats.items()},
        )
        return operations(SimpleNamespace(planes=[plane]), markers)


def marker(begin: int) -> Marker:
    """A marker from `begin` to `begin` + 1 us: looks 2 us before it, in its middle, and 2 us after it."""
    at = TRACE_BEGAN + 1000 + begin
    return Marker(at - 2000, at + 500, at + 3000)


def event(name: str, start: float, end: float, **stats: str) -> tuple[str, float, float, dict[str, str]]:
    return name, start, end, stats


def rows(read: Operations) -> list[tuple[str, str, float, float]]:
    """(component, thread, start and end in microseconds since the trace began)."""
    begin = (TRACE_BEGAN + 1000) / 1e9
    return [
        (
            read.components[read.component[at]],
            read.threads[read.thread[at]],
            round((read.start[at] - begin) / MICRO, 1),
            round((read.end[at] - begin) / MICRO, 1),
        )
        for at in range(len(read.start))
    ]


def test_operations_come_with_thread_and_bytes_on_the_clock_of_the_process() -> None:
    space = Space().line(7, "python", event("IteratorGetNextOp::DoCompute", 10, 400, element_size="65556"))
    space.line(
        2**32 - 5, "tf_data_private_threadpool/-5",
        event("ReadFile:ReadFile", 20, 300),
        event("map/DecodeAndCropJpeg:DecodeAndCropJpeg", 310, 350),
        event("ExecutorState::Process", 15, 360),
        event("ThreadpoolListener::Record", 15, 15),
    )  # fmt: skip
    space.line(3, "tf_data_iterator_resource/3", event("Iterator::Root::Prefetch::FlatMap[0]::TFRecord", 30, 50))
    read = space.read()
    assert rows(read) == [
        ("tf:IteratorGetNext", "tensorflow trainer", 10, 400),
        ("tf:ReadFile", "tensorflow tf_data_private_threadpool/-5", 20, 300),
        ("tf:TFRecord", "tensorflow tf_data_iterator_resource/3", 30, 50),
        ("tf:DecodeJpeg", "tensorflow tf_data_private_threadpool/-5", 310, 350),
    ]
    assert read.bytes.tolist() == [65556, -1, -1, -1]
    assert (read.events, read.dropped) == (8, 0)
    assert read.alignment.within < 3 * MICRO


def test_short_operations_are_added_up_and_long_gaps_between_them_are_not() -> None:
    adds = [event(f"net/add_{number}:AddV2", 10 * number, 10 * number + 4) for number in range(4)]
    space = Space().line(7, "python").line(1, "tf_Compute/1", *adds, event("net/Conv2D:Conv2D", 100, 200))
    space.line(2, "tf_data_private_threadpool/2", event("Cast:Cast", 5, 6), event("a/Less:Less", 7, 9))
    assert rows(space.read()) == [
        ("tf:network op", "tensorflow tf_Compute/1", 0, 34),
        ("tf:input op", "tensorflow tf_data_private_threadpool/2", 5, 9),
        ("tf:network op", "tensorflow tf_Compute/1", 100, 200),
    ]
    assert union_of([(0, 1), (1.5, 2), (4, 5), (1, 1.2)], gap=0.5) == [(0, 2), (4, 5)]


def test_an_allreduce_lasts_until_horovod_is_done_with_it() -> None:
    def asked(begin: float, step: str, mark: str = "Start") -> tuple[str, float, float, dict[str, str]]:
        about = {"name": "gradients", "kernel_type": "HorovodGroupedAllreduce", "step_id": step}
        return f"ExecutorState::ProcessAsync::{mark}", begin, begin + 2, about

    space = Space().line(1, "tf_Compute/1", asked(10, "a"), asked(300, "b"), asked(600, "c"))
    space.line(
        2, "python", asked(110, "a", "Done"), asked(500, "b", "Done")
    )  # the third was under way when the trace stopped
    assert rows(space.read()) == [
        ("tf:allreduce", "tensorflow Horovod", 10, 110),
        ("tf:allreduce", "tensorflow Horovod", 300, 500),
    ]


def test_the_error_of_the_alignment_holds_what_the_clocks_drifted() -> None:
    straight = Space().line(1, "tf_Compute/1", event("ReadFile:ReadFile", 10, 20)).read().alignment
    drifted = Space().line(1, "tf_Compute/1", event("ReadFile:ReadFile", 10, 20)).read(drift=50_000).alignment
    assert straight.drift == 0
    assert straight.within == pytest.approx(0.5 * MICRO * 2, rel=0.6)
    assert drifted.within == pytest.approx(25 * MICRO + straight.within, rel=0.01)
    assert 0 < drifted.drift <= 50 * MICRO
    assert alignment((1.0, 2.0), (1.5, 2.5)) == alignment((1.5, 2.5), (1.0, 2.0))
    assert alignment((5.0, 6.0), (2.0, 3.0)).drift == -2.0


def test_a_trace_without_our_markers_is_refused() -> None:
    plane = SimpleNamespace(name="/host:CPU", lines=[], event_metadata={}, stat_metadata={})
    with pytest.raises(ValueError, match="markers"):
        operations(SimpleNamespace(planes=[plane]), [[marker(0)], [marker(900_000)]])


def test_rows_beyond_the_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlio_bench.harness.training.tf_trace.MOST_ROWS", 2)
    reads = [event("ReadFile:ReadFile", 10 * number, 10 * number + 5) for number in range(5)]
    read = Space().line(1, "tf_data_private_threadpool/1", *reads).read()
    assert (len(read.start), read.dropped) == (2, 3)
    assert np.all(np.diff(read.start) > 0)


def test_every_name_of_the_table_is_a_component_of_a_known_kind() -> None:
    assert {operation.kind for operation in table.OPERATIONS} <= set(KINDS)
    for names in (table.ALIASES, table.STAGES):
        assert set(names.values()) <= set(table.BY_NAME)
    assert table.component("Foo:PyFunc", of_input=True) == table.PYTHON
    assert table.component("EagerLocalExecute: BatchDatasetV2", of_input=False) == table.SET_UP
    assert table.component("EagerLocalExecute: _EagerConst", of_input=False) == table.EAGER
    assert table.component("EagerLocalExecute: __inference_step_12", of_input=False) == table.CALL
    for nothing in (
        "EagerLocalExecute: IteratorGetNext",
        "PrefetchProduce",
        "MemoryAllocation",
        "KernelAndDeviceFunc::Run",
    ):
        assert table.component(nothing, of_input=False) is None
