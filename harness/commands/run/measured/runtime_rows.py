"""TensorFlow's trace of a trial, and its operations as rows of a rank's spans, with their bytes."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from dlio_bench import components
from dlio_bench import tensorflow_operations as table
from dlio_bench.batches import validation_after
from dlio_bench.harness.commands.run.asked.job import uses_tensorflow
from dlio_bench.harness.commands.run.asked.tracing import TENSORFLOW, XPLANE
from dlio_bench.harness.commands.run.measured.observer import After, Observer, Rank, Running, Segment
from dlio_bench.harness.commands.run.measured.spans import Table
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.training import tf_trace
from dlio_bench.harness.training.tf_trace import Operations, Traced
from dlio_bench.recorder import NO_EPOCH, NOWHERE, ROW
from dlio_bench.reports.traces.timeline import RuntimeTrace

# Our spans that are reads of a file. Others enclose these, or belong to tiers and copies.
FILE_READS = tuple(components.CODE[name] for name in ("pread", "copy read", "library read", "image file read"))
FROM_SPANS, FROM_COUNTERS = "spans", "counters"
Integers = npt.NDArray[np.int64]


def rows(traced: Traced, reads: Iterable[Table], requested: int) -> tuple[list[tuple[str, Table]], str]:
    """(name, rows) of each of TensorFlow's threads, and what its reads have their bytes from.

    reads: what this rank's threads and processes recorded. requested: bytes that the traced steps asked files for, by
    the counters.
    """
    operations = traced.operations
    sizes, derived_from = derive_bytes(operations, reads, requested)
    whole = np.zeros(len(operations.start), ROW)
    codes = np.array([table.CODE[name] for name in operations.components], dtype=np.int32)
    whole["component"] = codes[operations.component] if len(codes) else 0
    whole["start"], whole["end"] = operations.start, operations.end
    whole["bytes"] = np.maximum(np.where(operations.bytes >= 0, operations.bytes, sizes), 0)
    whole["file"] = whole["offset"] = whole["step"] = NOWHERE
    whole["epoch"] = NO_EPOCH  # what is read ahead is of another epoch than the step under way
    return [(name, whole[operations.thread == thread]) for thread, name in enumerate(operations.threads)], derived_from


def derive_bytes(operations: Operations, reads: Iterable[Table], requested: int) -> tuple[Integers, str]:
    """Bytes of the operations that read files, [rows], and their source; all others have 0.

    Those are operations of kind `read`, or calls of Python functions where there are none. Our spans lie inside them:
    the bytes of a span go in equal parts to the operations around it. Without a span, `requested` goes in equal parts
    to all of them.
    """
    sizes = np.zeros(len(operations.start), dtype=np.int64)
    kinds = [table.BY_NAME[name].kind for name in operations.components]
    reading = _is_component(operations, [number for number, kind in enumerate(kinds) if kind == "read"])
    if not len(reading):
        reading = _is_component(
            operations, [number for number, name in enumerate(operations.components) if name == table.PYTHON]
        )
    if not len(reading):
        return sizes, ""
    spans = np.concatenate([np.zeros(0, ROW), *reads])
    spans = spans[np.isin(spans["component"], FILE_READS) & (spans["bytes"] > 0)]
    start, end, within = operations.start[reading], operations.end[reading], operations.alignment.within
    inside = False
    for row in spans:
        around = reading[(start <= row["start"] + within) & (row["end"] <= end + within)]
        if len(around):
            inside = True
            _share(int(row["bytes"]), around, sizes)
    if inside:
        return sizes, FROM_SPANS
    _share(requested, reading, sizes)
    return sizes, FROM_COUNTERS


def _is_component(operations: Operations, components: Sequence[int]) -> Integers:
    return np.flatnonzero(np.isin(operations.component, components))


def _share(size: int, among: Integers, sizes: Integers) -> None:
    """Add equal parts of `size` to some of `sizes`; the first ones get a byte more where it does not come out even."""
    part, rest = divmod(size, len(among))
    sizes[among] += part
    sizes[among[:rest]] += 1


def trace_summary(traced: Traced, times: TrialTimes, derived_from: str) -> RuntimeTrace:
    """What is to be known of a rank's trace, besides its rows."""
    operations = traced.operations
    log, steps = times.log, traced.steps
    asked, answered = log.clock[:steps, 0], log.clock[:steps, 1]
    taken = np.array([name == table.GET_NEXT for name in operations.components], dtype=bool)
    starts = operations.start[taken[operations.component]] if len(taken) else np.zeros(0)
    reported = operations.bytes[taken[operations.component]] if len(taken) else np.zeros(0, np.int64)
    step = np.searchsorted(asked, starts, side="right") - 1
    of_step = (step >= 0) & (starts <= answered[np.maximum(step, 0)]) & (reported >= 0)
    return RuntimeTrace(
        trial=times.number,
        steps=steps,
        began=traced.began - times.loops[0][0],
        ended=traced.ended - times.loops[0][0],
        within=operations.alignment.within,
        drift=operations.alignment.drift,
        events=operations.events,
        rows=len(operations.start),
        dropped=operations.dropped,
        outside=int(((operations.start < traced.began) | (operations.end > traced.ended)).sum()),
        batches=int(of_step.sum()),
        reported_bytes=int(reported[of_step].sum()),
        delivered_bytes=traced.delivered_bytes,
        derived_from=derived_from,
    )


def requested_bytes(times: TrialTimes, steps: int) -> int:
    """Bytes that the first steps of a trial asked files for: their part of the counters of their epochs.

    A validation pass counts with the last step of its epoch.
    """
    passes, whole = {pass_.epoch for pass_ in times.passes}, 0.0
    for epoch, plan in enumerate(times.plan):
        part = min(steps, len(plan)) / len(plan)
        whole += part * times.tally.of(epoch).bytes_requested
        if part == 1 and epoch in passes:
            whole += times.tally.of(validation_after(epoch)).bytes_requested
        steps -= min(steps, len(plan))
    return round(whole)


class RuntimeTraces(Observer):
    """Has TensorFlow trace the last trial of each reader or network of TensorFlow's, if the job asks for it."""

    def __init__(self, rank: Rank) -> None:
        self._job, self._stack = rank.job, ExitStack()
        self._trace: tf_trace.Recording | None = None

    def __exit__(self, *_: object) -> None:
        """See Observer."""
        self._stack.close()

    def before_trial(self, trial: Running) -> None:
        """See Observer."""
        job, last = self._job, trial.times.number == self._job.all_trials - 1
        if TENSORFLOW in job.options.trace and last and uses_tensorflow(job, trial.row):
            made = tf_trace.recording(job.options.trace_steps, keep=XPLANE in job.options.trace)
            self._trace = self._stack.enter_context(made)

    def before_loop(self, segment: Segment) -> None:
        """See Observer."""
        if self._trace is not None and segment.is_first:
            self._trace.begin()

    def after_step(self, segment: Segment) -> Mapping[int, After]:
        """See Observer: the trace ends after its last step."""
        if self._trace is None or not segment.is_first:
            return {}
        trace = self._trace
        return dict.fromkeys(trace.ends(len(segment.log.clock)), lambda *_: trace.end())

    def after_loop(self, segment: Segment) -> None:
        """See Observer."""
        if self._trace is not None and segment.is_first:
            self._trace.end()

    def after_trial(self, trial: Running) -> None:
        """See Observer. EnvironmentFailure where TensorFlow left nothing."""
        if self._trace is not None:
            delivered, view = trial.times.log.ids[: self._trace.steps], trial.reader.sample_view
            trial.times.traced = self._trace.read(int(view.sizes(delivered[delivered >= 0]).sum()))
            self._trace = None
        self._stack.close()
