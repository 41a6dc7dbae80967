"""What trainers waited for while they waited for input: TensorFlow's operations among the spans (`run --trace tf`).

Rule. At each moment of a stall, every thread is at the operation that it began last of those under way. The moment goes
in equal parts to the threads that work. Operations that only wait for others (kind `wait`) take no part. An operation
that encloses recorded work of the process (a call of a Python function, see ENCLOSING) takes part only where nothing
else works. Moments in which no thread works go to NOTHING. So the parts of a stall add up to it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct, structs

from dlio_bench.components import Component
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.traces.accounting import ITERATION, NEXT_BATCH, Interval, latest
from dlio_bench.reports.traces.components import is_derived
from dlio_bench.reports.traces.tables import as_text, shorten
from dlio_bench.reports.traces.timeline import RuntimeTrace, Timeline
from dlio_bench.reports.view.formatting import format_share, format_time, plural
from dlio_bench.reports.view.table import table_lines
from dlio_bench.tensorflow_operations import REPORT_BYTES
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrap

NAME = 21  # columns of an operation
NOTHING = "nothing recorded"
WAIT = "wait"
ENCLOSING = frozenset({"tf:PyFunc"})
# Kinds that enclose others, wait for them, or belong to training: no work that a stall could be waiting for.
_NO_WORK = frozenset({WAIT, "step", "compute", "communication"})
THE_STALL = "records"  # what a trainer says of its own stall
# by kind; a file system may be emulated
WAITED_FOR: Mapping[str, str] = {
    "read": "the file system", "metadata": "the file system", "write": "the file system", "remote": "other ranks",
    "decode": "decoding",
}  # fmt: skip
EMULATED = "the emulated file system"
OF_PYTHON, OF_TENSORFLOW, UNKNOWN = "a Python function", "TensorFlow", "not known"
SPLIT = {"spans": "of our spans inside it, in equal parts", "counters": "of the epoch's counters, in equal parts"}


class Operation(Struct, frozen=True):
    """Something under way in a thread, in seconds of the clock of the stalls."""

    thread: int
    component: str
    kind: str
    start: float
    end: float


class OperationRow(Struct, frozen=True):
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


class StepStalls(Struct, frozen=True):
    """The stalls of a step, over all ranks: seconds by operation. They add up to the step's stalls."""

    step: int
    stall: float
    seconds: Mapping[str, float]


class InputTable(Struct, frozen=True):
    """What stalls of the traced steps went to. stall: seconds of all ranks, which the rows add up to."""

    trial: int
    ranks: int
    stall: float
    rows: Sequence[OperationRow]
    steps: Sequence[StepStalls]
    traces: Mapping[int, RuntimeTrace]


def table(timeline: Timeline, *, emulated: bool = False) -> InputTable | None:
    """The table of a run whose spans have TensorFlow's operations; None for others. emulated: its file system."""
    traces = timeline.tensorflow
    if not traces:
        return None
    kinds = {component.name: component for component in timeline.components}
    by_step: dict[int, dict[str, float]] = {}
    counts, sizes = Counter[str](), Counter[str]()
    for rank, trace in traces.items():
        of_rank = timeline.part((timeline.rank == rank) & (timeline.trial == trace.trial))
        of_rank = of_rank.part(of_rank.start < _end(of_rank, trace.steps))
        stalls = of_rank.part(of_rank.are_of(NEXT_BATCH) & (of_rank.step >= 0) & (of_rank.step < trace.steps))
        stalls = stalls.part(np.argsort(stalls.start, kind="stable"))
        intervals = list(zip(stalls.start.tolist(), stalls.end.tolist(), strict=True))
        for number, of_step in zip(stalls.step.tolist(), shares(intervals, _operations(of_rank)), strict=True):
            sums = by_step.setdefault(number, {})
            for name, seconds in of_step.items():
                sums[name] = sums.get(name, 0.0) + seconds
        for code in np.unique(of_rank.component).tolist():
            name, chosen = of_rank.components[code].name, of_rank.component == code
            counts[name] += int(chosen.sum())
            sizes[name] += int(of_rank.bytes[chosen].sum())
    summed = total(by_step.values())
    stall = sum(summed.values())
    moving = {name for name in sizes if name in REPORT_BYTES or (sizes[name] and kinds[name].kind == "read")}
    moving.discard(THE_STALL)  # a sum of the others
    shown = {**summed, **dict.fromkeys(sorted(moving - summed.keys()), 0.0)}
    rows = [
        OperationRow(
            operation=name,
            waited_for=_waited_for(name, kinds.get(name), emulated=emulated),
            seconds=seconds,
            share=seconds / stall if stall else 0.0,
            spans=counts[name],
            bytes=sizes[name] or None,
            derived=is_derived(name, sizes[name]),
        )
        for name, seconds in shown.items()
    ]
    steps = [StepStalls(number, sum(sums.values()), sums) for number, sums in sorted(by_step.items())]
    return InputTable(min(trace.trial for trace in traces.values()), len(traces), stall, rows, steps, traces)


def _end(of_rank: Timeline, steps: int) -> float:
    """When the last traced step ended."""
    return float(of_rank.end[of_rank.are_of(ITERATION) & (of_rank.step < steps)].max(initial=0.0))


def _operations(of_rank: Timeline) -> Iterator[Operation]:
    columns = (getattr(of_rank, name).tolist() for name in ("track", "component", "start", "end"))
    for track, component, start, end in zip(*columns, strict=True):
        known = of_rank.components[component]
        yield Operation(track, known.name, known.kind, start, end)


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
    return as_text(_lines(shown))


def _lines(shown: InputTable) -> Iterator[str]:
    steps = max(trace.steps for trace in shown.traces.values())
    of_trial = f"the first {plural(steps, 'step')} of trial {shown.trial + 1}"
    whole = f"{format_time(shown.stall)} over {plural(shown.ranks, 'rank')}"
    yield from wrap(f"waiting for input in {of_trial}, by TensorFlow's trace: {whole}", "  ", whole_words=True)
    yield ""
    rows = []
    for row in shown.rows:
        name, time, share = shorten(printable(row.operation), NAME), format_time(row.seconds), format_share(row.share)
        size = ("" if row.bytes is None else format_bytes(row.bytes)) + ("*" if row.derived else " ")
        rows.append((name, row.waited_for, time, share, row.spans, size))
    yield from table_lines(["inside", "waiting for", "time", "share", "spans", "bytes "], rows, words=["waiting for"])
    yield ""
    for line in _notes(shown):
        yield from wrap(line, "  ", whole_words=True)


def _notes(shown: InputTable) -> Iterator[str]:
    yield (
        "each moment goes in equal parts to the threads at work; what only waits for others has no part. Spans and "
        "bytes are of the whole trace; short operations of TensorFlow's are added up to one span."
    )
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


def shares(stalls: Sequence[Interval], operations: Iterable[Operation]) -> list[dict[str, float]]:
    """Seconds of each stall by component, NOTHING included. stalls: apart, in their order."""
    by_thread: dict[int, list[Operation]] = {}
    for operation in operations:
        if operation.start < operation.end:
            by_thread.setdefault(operation.thread, []).append(operation)
    changes: list[tuple[float, int, str]] = []  # moment, +1 or -1, component
    for of_thread in by_thread.values():
        for start, end, now in latest(of_thread):
            if now.kind not in _NO_WORK and now.component != THE_STALL:
                changes += [(start, 1, now.component), (end, -1, now.component)]
    cuts = [(moment, 0, "") for stall in stalls for moment in stall]
    sums: list[dict[str, float]] = [{} for _ in stalls]
    working: Counter[str] = Counter()
    at = 0
    for (moment, change, component), (following, _, _) in pairwise(sorted([*changes, *cuts])):
        if change:
            working[component] += change
        while at < len(stalls) and stalls[at][1] <= moment:
            at += 1
        if at < len(stalls) and stalls[at][0] <= moment < following:
            for name, part in _parts(working):
                sums[at][name] = sums[at].get(name, 0.0) + part * (following - moment)
    return sums


def total(sums: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of all stalls, the longest first."""
    whole: Counter[str] = Counter()
    for of_stall in sums:
        whole.update(of_stall)
    return dict(sorted(whole.items(), key=lambda entry: (-entry[1], entry[0])))


def _parts(working: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """(component, its part of a moment), given how many threads are at each."""
    busy = {name: count for name, count in working.items() if count and name not in ENCLOSING}
    busy = busy or {name: count for name, count in working.items() if count}
    if not busy:
        yield NOTHING, 1.0
    threads = sum(busy.values())
    for name, count in busy.items():
        yield name, count / threads
