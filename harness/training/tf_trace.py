"""Recording TensorFlow's runtime trace around the first steps of a trial, and how far it can be believed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.training.tf_events import Marker, Operations, marker_name, operations

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
        self._markers.append(self._marked())
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
        self._markers.append(self._marked())
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

    def _marked(self) -> list[Marker]:
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
