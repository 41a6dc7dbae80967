"""Recording TensorFlow's runtime trace around the first steps of a trial, and how far it can be believed."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench import tensorflow_operations as table
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.machine.temp_folders import temp_folder

# Operations of TensorFlow's runtime trace: the events of an XSpace as rows, on the clock of this process.
#
# An XSpace (tsl/profiler/protobuf/xplane.proto) has a plane for the host, with a line for each thread; its events have
# a name, a start and a length in picoseconds. The clock counts from the begin of the trace, on the wall clock: markers
# that this process leaves in the trace, between two looks at time.perf_counter, say how far it is off (see
# `alignment`).

HOST_PLANE = "/host:CPU"
MARKER = "dlio-bench marker "
TRAINER = "trainer"  # the thread that left them
# Short operations with less than this between them are one row: the time between is TensorFlow's own.
GAP = 50e-6  # seconds
MOST_ROWS = 200_000  # of a rank, some 10 MB
PICO, NANO = 1e-12, 1e-9

Row = tuple[str, float, float, int]  # component, start, end, bytes or -1


class Marker(Struct, frozen=True):
    """A marker that was left in the trace: time.perf_counter_ns before it began, inside it, and after it ended."""

    before: int
    inside: int
    after: int


class ClockAlignment(Struct, frozen=True):
    """Seconds to add to times of the trace for those of time.perf_counter, and by how much that may be wrong.

    drift: by how much the two clocks at least moved against each other between the first markers and the last, seconds.
    """

    ahead: float
    within: float
    drift: float


class Operations(Struct, frozen=True):
    """What was under way in TensorFlow's threads, by start: arrays [rows].

    component: index into `components`; thread: index into `threads`. start, end: seconds of time.perf_counter. bytes:
    that TensorFlow reports; -1 where it says nothing.
    events: in the whole trace. dropped: rows beyond MOST_ROWS, the latest.
    """

    components: tuple[str, ...]
    threads: tuple[str, ...]
    component: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.int64]
    events: int
    dropped: int
    alignment: ClockAlignment


def operations(space: Any, markers: Sequence[Sequence[Marker]]) -> Operations:
    """The operations of an XSpace. markers: of the begin and of the end, as the trainer's thread left them.

    ValueError where they are missing.
    """
    plane = next(plane for plane in space.planes if plane.name == HOST_PLANE)
    aligned = alignment(*_bounds(plane, markers))
    names: list[str] = []
    rows: list[tuple[int, Row]] = []
    events = 0
    mark = next(number for number in plane.event_metadata if plane.event_metadata[number].name.startswith(MARKER))
    for line in plane.lines:
        events += len(line.events)
        of_line = list(_rows(plane, line, aligned.ahead))
        if not of_line:
            continue
        # TensorFlow numbers threads by a hash of its own, and names those that Python has started after the process
        name = line.name if "/" in line.name else f"{line.name}/{line.id}"
        if any(event.metadata_id == mark for event in line.events):
            name = TRAINER
        rows += [(len(names), row) for row in of_line]
        names.append(f"tensorflow {name}")
    waits = list(_asynchronous(plane, aligned.ahead))
    if waits:  # they run in no thread of their own, and may overlap
        rows += [(len(names), row) for row in waits]
        names.append("tensorflow Horovod")
    rows.sort(key=lambda entry: entry[1][1])
    kept = rows[:MOST_ROWS]
    components = tuple(dict.fromkeys(row[0] for _, row in kept))
    numbers = {name: number for number, name in enumerate(components)}
    return Operations(
        components=components,
        threads=tuple(names),
        component=np.array([numbers[row[0]] for _, row in kept], dtype=np.int64),
        thread=np.array([thread for thread, _ in kept], dtype=np.int64),
        start=np.array([row[1] for _, row in kept]),
        end=np.array([row[2] for _, row in kept]),
        bytes=np.array([row[3] for _, row in kept], dtype=np.int64),
        events=events,
        dropped=len(rows) - len(kept),
        alignment=aligned,
    )


Bounds = tuple[float, float]  # at least, at most


def alignment(begin: Bounds, end: Bounds) -> ClockAlignment:
    """What the bounds of the begin and of the end prove.

    The truth lies between the least and the most of both, whatever the clocks did in between, as long as they did it
    steadily: half of that is the error.
    """
    least, most = min(begin[0], end[0]), max(begin[1], end[1])
    drift = max(end[0] - begin[1], 0.0) + min(end[1] - begin[0], 0.0)
    return ClockAlignment((least + most) / 2, (most - least) / 2, drift)


def _bounds(plane: Any, markers: Sequence[Sequence[Marker]]) -> list[Bounds]:
    """Seconds that the process's clock is ahead of the trace's, by the markers of the begin and of the end.

    A marker begins after the look before it and before the look inside it, and ends after that and before the last
    (Cristian, "Probabilistic clock synchronization", 1989): the tightest of all markers count.
    """
    named = {
        plane.event_metadata[number].name: number
        for number in plane.event_metadata
        if plane.event_metadata[number].name.startswith(MARKER)
    }
    events = {
        event.metadata_id: (line.timestamp_ns * 1000 + event.offset_ps, event.duration_ps)
        for line in plane.lines
        for event in line.events
        if event.metadata_id in set(named.values())
    }
    bounds = []
    for group, of_group in enumerate(markers):
        at_least, at_most = [], []
        for number, marker in enumerate(of_group):
            place = named.get(marker_name(group, number))
            if place not in events:
                continue
            start, length = events[place]
            # integers: a float has no room for picoseconds since the machine started
            at_least += [marker.before * 1000 - start, marker.inside * 1000 - start - length]
            at_most += [marker.inside * 1000 - start, marker.after * 1000 - start - length]
        if not at_least:
            raise ValueError("The trace has none of the markers that were left in it.")
        bounds.append((max(at_least) * PICO, min(at_most) * PICO))
    return bounds


def marker_name(group: int, number: int) -> str:
    """The name of a marker in the trace."""
    return f"{MARKER}{group}.{number}"


def _rows(plane: Any, line: Any, ahead: float) -> Iterator[Row]:
    """The rows of a thread: operations of the table, and the others added up."""
    of_input = line.name.startswith("tf_data_")
    components: dict[int, str | None] = {}
    begin = line.timestamp_ns * NANO + ahead
    added_up: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in line.events:
        number = event.metadata_id
        if number not in components:
            components[number] = table.component(plane.event_metadata[number].name, of_input=of_input)
        name = components[number]
        if name is None or name in table.ASYNCHRONOUS:
            continue
        start = begin + event.offset_ps * PICO
        end = start + event.duration_ps * PICO
        if name in table.ADDED_UP:
            added_up[name].append((start, end))
        else:
            yield name, start, end, _bytes(plane, event) if name in table.REPORT_BYTES else -1
    for name, intervals in added_up.items():
        yield from ((name, start, end, -1) for start, end in union_of(intervals))


def union_of(intervals: Iterable[tuple[float, float]], gap: float = GAP) -> list[tuple[float, float]]:
    """The union of intervals, in which those with less than `gap` between them are one."""
    union: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1] + gap:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((start, end))
    return union


def _asynchronous(plane: Any, ahead: float) -> Iterator[Row]:
    """Operations that go on after their call has returned: from the executor's start to what it does when they end."""
    under_way: dict[tuple[str, str], list[float]] = defaultdict(list)
    ended: dict[tuple[str, str], list[float]] = defaultdict(list)
    components: dict[tuple[str, str], str] = {}
    marks = {"ExecutorState::ProcessAsync::Start": under_way, "ExecutorState::ProcessAsync::Done": ended}
    numbers = {
        number: marks[plane.event_metadata[number].name]
        for number in plane.event_metadata
        if plane.event_metadata[number].name in marks
    }
    for line in plane.lines:
        for event in line.events:
            if event.metadata_id not in numbers:
                continue
            stats = _stats(plane, event)
            name = table.operation_component(str(stats.get("kernel_type")))
            if name not in table.ASYNCHRONOUS:
                continue
            key = str(stats.get("name")), str(stats.get("step_id"))
            components[key] = name
            start = line.timestamp_ns * NANO + ahead + event.offset_ps * PICO
            numbers[event.metadata_id][key].append(start)
    for key, starts in under_way.items():
        # one whose end is not in the trace was still under way when it stopped
        for start, end in zip(sorted(starts), sorted(ended[key]), strict=False):
            yield components[key], start, end, -1


def _bytes(plane: Any, event: Any) -> int:
    size = str(_stats(plane, event).get("element_size", ""))
    return int(size) if size.isdigit() else -1


def _stats(plane: Any, event: Any) -> dict[str, Any]:
    values = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        values[plane.stat_metadata[stat.metadata_id].name] = (
            plane.stat_metadata[value].name if kind == "ref_value" else value
        )
    return values


MARKERS = 20  # at the begin and at the end; the first are slow, as their code is not in the processor's caches
# 2 has the operations, the stages of datasets and the executor; 3 adds what lasts shorter than a microsecond.
_LEVEL = 2
_FIX = "Trace fewer steps, as with --trace-steps 10, or leave out --trace tf."


class Traced(Struct, frozen=True):
    """What was traced: the steps, from when to when (seconds of time.perf_counter, between the markers).

    delivered_bytes: of the batches that the trainer got in these steps. file: TensorFlow's own, if it is to be kept.
    """

    operations: Operations
    steps: int
    began: float
    ended: float
    delivered_bytes: int
    file: bytes


class Recording:
    """A trace, made before it begins. It belongs to one thread, that of the timed loop; a process has one at a time.

    steps: that it lasts, at most. keep: also hand out TensorFlow's own file.
    """

    def __init__(self, folder: Path, steps: int, *, keep: bool) -> None:
        self._keep = keep
        self._tf, self._folder = tensorflow(), folder
        self._markers: list[list[Marker]] = []
        self.steps = steps
        self._began = self._ended = 0.0

    def begin(self) -> None:
        """Begin. EnvironmentFailure where another trace is under way."""
        profiler = self._tf.profiler.experimental
        options = profiler.ProfilerOptions(host_tracer_level=_LEVEL, python_tracer_level=0, device_tracer_level=0)
        try:
            profiler.start(str(self._folder), options=options)
        except self._tf.errors.OpError as error:
            raise EnvironmentFailure(f"TensorFlow's trace does not start: {error.message}. {_FIX}") from error
        self._markers.append(self._write_markers())
        self._began = time.perf_counter()

    def ends(self, steps: int) -> list[int]:
        """The step of a loop of so many after which to end the trace; none where its end is that of the loop."""
        self.steps = min(self.steps, steps)
        return [self.steps - 1] if self.steps < steps else []

    def end(self) -> None:
        """End the trace, once, and write its file, which takes some 2 us an event."""
        if not self._began or self._ended:
            return
        self._ended = time.perf_counter()
        self._markers.append(self._write_markers())
        self._tf.profiler.experimental.stop()

    def read(self, delivered_bytes: int) -> Traced:
        """What is in its file. EnvironmentFailure where there is none, or none of ours."""
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
        from tensorflow.tsl.profiler.protobuf import xplane_pb2  # type: ignore[import-untyped, unused-ignore]

        space: Any = xplane_pb2.XSpace()
        try:
            [file] = self._folder.rglob("*.xplane.pb")
            content = file.read_bytes()
            space.ParseFromString(content)
            rows = operations(space, self._markers)
        except (OSError, StopIteration, ValueError, DecodeError) as error:
            raise EnvironmentFailure(f"TensorFlow left no trace that can be read: {error}. {_FIX}") from error
        return Traced(rows, self.steps, self._began, self._ended, delivered_bytes, content if self._keep else b"")

    def _write_markers(self) -> list[Marker]:
        trace, clock, markers = self._tf.profiler.experimental.Trace, time.perf_counter_ns, []
        for number in range(MARKERS):
            name = marker_name(len(self._markers), number)
            before = clock()
            with trace(name):
                inside = clock()
            markers.append(Marker(before, inside, clock()))
        return markers


@contextmanager
def recording(steps: int, *, keep: bool) -> Iterator[Recording]:
    """A trace of this process of at most so many steps. It ends with the block, and its file is removed there."""
    with temp_folder("dlio-bench-tf-") as folder:
        recorded = Recording(folder, steps, keep=keep)
        try:
            yield recorded
        finally:
            recorded.end()
