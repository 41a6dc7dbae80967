"""The table of what a run's trainers waited for while they waited for input, from its spans (`run --trace tf`)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, structs

from dlio_bench.components import Component
from dlio_bench.reports.component_table import is_derived
from dlio_bench.reports.formatting import format_share, format_time, plural
from dlio_bench.reports.input_time import ENCLOSING, NOTHING, THE_STALL, WAIT, Operation, shares, total
from dlio_bench.reports.timeline import RuntimeTrace, Timeline
from dlio_bench.reports.typed import to_json
from dlio_bench.tensorflow_operations import REPORT_BYTES
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrapped

NAME = 21  # columns of an operation
STALL, ITERATION = "Call to Next Batch", "Training Iteration"
# by kind; a file system may be emulated
WAITED_FOR: Mapping[str, str] = {
    "read": "the file system", "metadata": "the file system", "write": "the file system", "remote": "other ranks",
    "decode": "decoding",
}  # fmt: skip
EMULATED = "the emulated file system"
OF_PYTHON, OF_TENSORFLOW, UNKNOWN = "a Python function", "TensorFlow", "not known"
SPLIT = {"spans": "of our spans inside it, in equal parts", "counters": "of the epoch's counters, in equal parts"}


class Row(Struct, frozen=True):
    """One operation. seconds: of the stalls of all ranks; spans and bytes: of the whole trace.

    spans: as recorded: one of TensorFlow's may be several short operations, added up.
    bytes: None where nothing is known. derived: not reported by TensorFlow, but by what we read meanwhile.
    """

    operation: str
    waited_for: str
    seconds: float
    share: float  # of the stalls
    spans: int
    bytes: int | None
    derived: bool


class Step(Struct, frozen=True):
    """The stalls of a step, over all ranks: seconds by operation. They add up to the step's stalls."""

    step: int
    stall: float
    seconds: Mapping[str, float]


class InputTable(Struct, frozen=True):
    """What stalls of the traced steps went to. stall: seconds of all ranks, which the rows add up to."""

    trial: int
    ranks: int
    stall: float
    rows: Sequence[Row]
    steps: Sequence[Step]
    traces: Mapping[int, RuntimeTrace]


def table(timeline: Timeline, *, emulated: bool = False) -> InputTable | None:
    """The table of a run whose spans have TensorFlow's operations; None for others. emulated: its file system."""
    traces = timeline.tensorflow
    if not traces:
        return None
    kinds = {component.name: component for component in timeline.components}
    by_step: dict[int, dict[str, float]] = {}
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for rank, trace in traces.items():
        of_rank = timeline.part((timeline.rank == rank) & (timeline.trial == trace.trial))
        of_rank = of_rank.part(of_rank.start < _end(of_rank, trace.steps))
        numbers, stalls = _stalls(of_rank, trace.steps)
        operations = list(_operations(of_rank))
        for number, of_step in zip(numbers, shares(stalls, operations), strict=True):
            sums = by_step.setdefault(number, {})
            for name, seconds in of_step.items():
                sums[name] = sums.get(name, 0.0) + seconds
        for name, count, size in _counts(of_rank):
            counts[name] = counts.get(name, 0) + count
            sizes[name] = sizes.get(name, 0) + size
    summed = total(by_step.values())
    stall = sum(summed.values())
    told = {name for name in sizes if name in REPORT_BYTES or (sizes[name] and kinds[name].kind == "read")}
    told.discard(THE_STALL)  # a sum of the others
    shown = {**summed, **dict.fromkeys(sorted(told - summed.keys()), 0.0)}
    rows = [
        Row(
            operation=name,
            waited_for=_waited_for(name, kinds.get(name), emulated=emulated),
            seconds=seconds,
            share=seconds / stall if stall else 0.0,
            spans=counts.get(name, 0),
            bytes=sizes.get(name) or None,
            derived=is_derived(name, sizes.get(name, 0)),
        )
        for name, seconds in shown.items()
    ]
    steps = [Step(number, sum(sums.values()), sums) for number, sums in sorted(by_step.items())]
    return InputTable(min(trace.trial for trace in traces.values()), len(traces), stall, rows, steps, traces)


def _stalls(of_rank: Timeline, steps: int) -> tuple[list[int], list[tuple[float, float]]]:
    """The numbers of the traced steps and their stalls, in order."""
    stalls = of_rank.part(of_rank.of(STALL) & (of_rank.step >= 0) & (of_rank.step < steps))
    order = np.argsort(stalls.start, kind="stable")
    pairs = zip(stalls.start[order].tolist(), stalls.end[order].tolist(), strict=True)
    return stalls.step[order].tolist(), list(pairs)


def _end(of_rank: Timeline, steps: int) -> float:
    """When the last traced step ended."""
    return float(of_rank.end[of_rank.of(ITERATION) & (of_rank.step < steps)].max(initial=0.0))


def _operations(of_rank: Timeline) -> Iterator[Operation]:
    columns = (getattr(of_rank, name).tolist() for name in ("track", "component", "start", "end"))
    for track, component, start, end in zip(*columns, strict=True):
        known = of_rank.components[component]
        yield Operation(track, known.name, known.kind, start, end)


def _counts(of_rank: Timeline) -> Iterator[tuple[str, int, int]]:
    for number in np.unique(of_rank.component).tolist():
        chosen = of_rank.component == number
        yield of_rank.components[number].name, int(chosen.sum()), int(of_rank.bytes[chosen].sum())


def _waited_for(name: str, component: Component | None, *, emulated: bool) -> str:
    if name == NOTHING or component is None:
        return UNKNOWN
    if name in ENCLOSING:
        return OF_PYTHON
    if component.kind == WAIT:
        return ""
    waited_for = WAITED_FOR.get(component.kind, OF_TENSORFLOW)
    return EMULATED if emulated and waited_for == WAITED_FOR["read"] else waited_for


def document(shown: InputTable) -> dict[str, Any]:
    """The table as JSON. Trials count from 1, as in the text."""
    traces = {str(rank): structs.asdict(trace) | {"trial": trace.trial + 1} for rank, trace in shown.traces.items()}
    return {**to_json(structs.replace(shown, traces={})), "trial": shown.trial + 1, "traces": traces}


def render(shown: InputTable) -> str:
    """The table, at most 80 columns."""
    return "\n".join(_lines(shown)) + "\n"


def _lines(shown: InputTable) -> Iterator[str]:
    steps = max(trace.steps for trace in shown.traces.values())
    of_trial = f"the first {plural(steps, 'step')} of trial {shown.trial + 1}"
    whole = f"{format_time(shown.stall)} over {plural(shown.ranks, 'rank')}"
    yield from wrapped(
        f"waiting for input in {of_trial}, by TensorFlow's trace: {whole}",
        "  ",
        whole_words=True,
    )
    yield ""
    yield f"  {'inside':<{NAME}} {'waiting for':<24} {'time':>8} {'share':>6} {'spans':>6} {'bytes':>7}"
    for row in shown.rows:
        size = "" if row.bytes is None else format_bytes(row.bytes)
        line = (
            f"  {_cut(printable(row.operation), NAME):<{NAME}} {row.waited_for:<24} {format_time(row.seconds):>8} "
            f"{format_share(row.share):>6} {row.spans:>6} {size:>7}{'*' if row.derived else ''}"
        )
        yield line.rstrip()
    yield ""
    yield from wrapped(
        "each moment goes in equal parts to the threads at work; what only waits for others has no part. Spans and "
        "bytes are of the whole trace; short operations of TensorFlow's are added up to one span.",
        "  ",
        whole_words=True,
    )
    for line in _notes(shown):
        yield from wrapped(line, "  ", whole_words=True)


def _notes(shown: InputTable) -> Iterator[str]:
    traces = shown.traces.values()
    sources = sorted({SPLIT[trace.derived_from] for trace in traces if trace.derived_from in SPLIT})
    if sources and any(row.derived for row in shown.rows):
        yield f"* derived: TensorFlow reports no bytes of it; these are {' and '.join(sources)}."
    reported = sum(trace.reported_bytes for trace in traces)
    delivered = sum(trace.delivered_bytes for trace in traces)
    if reported and delivered:
        batches = sum(trace.batches for trace in traces)
        yield (
            f"TensorFlow reports {format_bytes(reported)} in {batches} batches; the trainers got "
            f"{format_bytes(delivered)}: {100 * (reported - delivered) / delivered:+.2f} %."
        )
    within, drift = max(trace.within for trace in traces), max((abs(trace.drift) for trace in traces), default=0.0)
    moved = f"; the clocks moved by {format_time(drift)} meanwhile" if drift else ""
    yield f"Times of TensorFlow's operations are right to {format_time(within)} on the clock of their rank{moved}."
    events, rows, dropped = (sum(getattr(trace, name) for trace in traces) for name in ("events", "rows", "dropped"))
    lost = f"; {dropped} more rows found no room" if dropped else ""
    yield f"Of {events} events {rows} rows are kept, short operations added up{lost}."
    if outside := sum(trace.outside for trace in traces):
        yield f"problem: {plural(outside, 'operation')} of TensorFlow's lie outside of the trace."


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
