"""What the trainers of a run did in one trial, from its step times alone: phases, spans, the critical path."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from dlio_bench.reports.document.types import Plan, Result
from dlio_bench.reports.numbers.meetings import Floats, Steps, phase
from dlio_bench.reports.numbers.metrics import PHASES
from dlio_bench.reports.traces.tables import as_text
from dlio_bench.reports.traces.timeline import BEFORE, Span
from dlio_bench.reports.view.formatting import format_share, format_time, plural
from dlio_bench.reports.view.table import table_lines
from dlio_bench.wrapping import printable, wrap

VALIDATION, OTHER = "validation", "other"
# What the NERSC study calls them. A whole step is its 'Training Iteration', the loop its 'Training Loop'.
COMPONENTS = {"stall": "Call to Next Batch", "checkpoint": "Checkpoint Listener"}
ITERATION, LOOP = "Training Iteration", "Training Loop"
BEFORE_MEETING = PHASES[: PHASES.index("exchange")]
HEADS = ("first epoch", "later epoch", "loop", "share", "worst rank")  # of `Row.cells`


class PhaseRow(Struct, frozen=True):
    """Seconds in a phase, mean of ranks: in the first epoch, in a later one, in the loop; and of the worst rank."""

    phase: str
    first_epoch: float
    later_epoch: float | None
    loop: float
    share: float  # of the mean loop
    worst_rank: int
    worst: float  # seconds in the loop

    @property
    def cells(self) -> list[str]:
        """As texts, see HEADS."""
        return [
            "" if self.phase == OTHER else format_time(self.first_epoch),
            "" if self.later_epoch is None else format_time(self.later_epoch),
            format_time(self.loop),
            format_share(self.share),
            f"{format_time(self.worst)} (rank {self.worst_rank})",
        ]


def breakdown(steps: Steps, trial: int) -> list[PhaseRow]:
    """Exclusive phases of a trial; with `other`, which is in no phase, they add up to the loop of each rank.

    trial: position in the arrays. `other` has no value by epoch, as what lies between epochs belongs to none.
    """
    epochs = steps["epoch"]
    loop = np.asarray(steps["loop"][trial], dtype=np.float64)
    by_phase = {name: phase(steps, name)[trial] for name in PHASES}
    shown = {name: _by_epoch(seconds, epochs) for name, seconds in by_phase.items() if name in steps}
    totals = np.sum([seconds.sum(axis=1) for seconds in by_phase.values()], axis=0)
    if VALIDATION in steps:
        passes = np.asarray(steps[VALIDATION][trial], dtype=np.float64)
        shown[VALIDATION] = _by_epoch(passes, steps["validation_epoch"], int(epochs.max()) + 1)
        by_phase[VALIDATION] = passes
        totals = totals + passes.sum(axis=1)
    rows = [_row(name, by_epoch, by_phase[name].sum(axis=1), loop) for name, by_epoch in shown.items()]
    return [*rows, _row(OTHER, np.zeros((len(loop), 0)), loop - totals, loop)]


def _row(name: str, by_epoch: Floats, totals: Floats, loop: Floats) -> PhaseRow:
    """by_epoch: [ranks, epochs]; totals, loop: [ranks]."""
    means = by_epoch.mean(axis=0)
    worst = int(totals.argmax())
    return PhaseRow(
        phase=name,
        first_epoch=float(means[0]) if len(means) else 0.0,
        later_epoch=float(means[1:].mean()) if len(means) > 1 else None,
        loop=float(totals.mean()),
        share=float(totals.mean() / loop.mean()),
        worst_rank=worst,
        worst=float(totals[worst]),
    )


def _by_epoch(seconds: Floats, epochs: Any, count: int | None = None) -> Floats:
    """[ranks, steps] -> [ranks, epochs]."""
    numbers = np.asarray(epochs, dtype=np.int64)
    sums = np.zeros((len(seconds), count or int(numbers.max()) + 1))
    for rank, row in enumerate(seconds):
        np.add.at(sums[rank], numbers, row)
    return sums


def render(result: Result, steps: Steps, trial: int) -> str:
    """The phases of one result for a terminal, at most 80 columns; trial: position in the arrays."""
    return as_text(_lines(result, steps, trial))


def _lines(result: Result, steps: Steps, trial: int) -> Iterator[str]:
    plan = result.plan
    scale = f"{plural(plan.nodes, 'node')} × {plural(plan.ranks_per_node, 'rank')}"
    yield printable(f"{result.workload.name} · {result.policy.alias or result.policy.name} · {scale}")
    loop = float(steps["loop"][trial].mean())
    number = result.trials[trial].trial
    yield f"  trial {number + 1} of {len(result.trials)}: its loop took {format_time(loop)}, mean of ranks"
    yield ""
    rows = [(row.phase, *row.cells) for row in breakdown(steps, trial)]
    yield from table_lines(["phase", *HEADS], rows, words=HEADS[-1:])
    yield ""
    yield from wrap("Mean of ranks. A later epoch: the mean of all after the first.", "  ")


class Phase(Struct, frozen=True):
    """One phase of a rank's trainer; `start` in seconds from the start of its loop. step: -1 for a validation pass."""

    rank: int
    epoch: int
    step: int
    name: str
    start: float
    seconds: float


def phases(steps: Steps, trial: int, ranks: Sequence[int], chosen: range | None = None) -> Iterator[Phase]:
    """Phases of some ranks in their order, of all steps or those chosen; those that took no time are left out.

    A validation pass is put behind the last step of its epoch, as no start is recorded for it.
    """
    names = [name for name in PHASES if name in steps]
    seconds = np.stack([phase(steps, name)[trial] for name in names])  # [phases, ranks, steps]
    starts = steps["start"][trial][None] + np.cumsum(seconds, axis=0) - seconds
    epochs = steps["epoch"]
    passes = dict(
        zip(steps.get("validation_epoch", ()), steps[VALIDATION][trial].T if VALIDATION in steps else (), strict=True)
    )
    last = set(np.flatnonzero(np.diff(epochs, append=epochs[-1] + 1)))
    for rank in ranks:
        for step, epoch in enumerate(epochs):
            if chosen is not None and step not in chosen:
                continue
            for number, name in enumerate(names):
                if spent := float(seconds[number, rank, step]):
                    yield Phase(rank, int(epoch), step, name, float(starts[number, rank, step]), spent)
            if step in last and epoch in passes:
                begun = float(starts[-1, rank, step] + seconds[-1, rank, step])
                yield Phase(rank, int(epoch), -1, VALIDATION, begun, float(passes[epoch][rank]))


def spans(steps: Steps, trial: int, *, with_passes: bool = True) -> Iterator[Span]:
    """What TimeLogger would have recorded of the trainers, by the study's names. Times from the start of the loop.

    with_passes: a step reaches to the end of the validation pass behind it, as in the study.
    """
    loop = steps["loop"][trial]
    thread = "<_MainThread(MainThread)>"
    for rank in range(len(loop)):
        yield Span(BEFORE, rank, "run", LOOP, 0.0, float(loop[rank]), float(loop[rank]), rank, thread)
        whole: dict[int, list[Phase]] = defaultdict(list)
        step = 0
        for entry in phases(steps, trial, [rank]):
            step = entry.step if entry.step >= 0 else step  # a pass follows its step
            if entry.step >= 0 or with_passes:
                whole[step].append(entry)
            if entry.name in COMPONENTS:
                end = entry.start + entry.seconds
                component = COMPONENTS[entry.name]
                yield Span(entry.epoch, rank, "run", component, entry.start, end, entry.seconds, rank, thread)
        for of_step in whole.values():
            start, end = of_step[0].start, of_step[-1].start + of_step[-1].seconds
            yield Span(of_step[0].epoch, rank, "run", ITERATION, start, end, end - start, rank, thread)


class CriticalPath(Struct, frozen=True):
    """Which rank the others waited for, meeting by meeting: seconds of the job by phase, on the rank that came last.

    phases: seconds; `exchange` is the least that a rank spent in each, `other` is in no phase. last: of each rank, the
    steps in which it came last. loop: what the trial's loop took, mean of ranks. The phases add up to it where all
    ranks leave a meeting at once; how much later a rank leaves, such as for want of a processor, is in no phase.
    """

    phases: Mapping[str, float]
    last: Sequence[int]
    loop: float

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.phases.values())


def why_none(plan: Plan) -> str | None:
    """Why a result has no critical path, or None: all its ranks must meet in every step."""
    if plan.models:
        return f"{len(plan.models)} models do not wait for each other, so that no rank is critical step by step"
    if plan.sync == "step":
        return None
    return f"ranks do not meet in each step (--sync {plan.sync}), so that no rank is critical step by step"


def critical_path(steps: Steps, trial: int) -> CriticalPath:
    """The critical path of a trial whose ranks meet behind every step; trial: position in the arrays.

    Ranks meet behind every step, and behind a validation pass. What a rank spends from one meeting to the next is a
    length of time on its own clock, so that clocks of hosts are never compared: the rank that spends most comes last.
    The others wait for it in the exchange. Between two meetings a rank has: what is left of the step before (its
    checkpoint, the validation pass), what is in no phase, and the phases of the step before its exchange.
    """
    seconds = {name: phase(steps, name)[trial] for name in PHASES}  # [ranks, steps]
    start = np.asarray(steps["start"][trial], dtype=np.float64)
    loop = np.asarray(steps["loop"][trial], dtype=np.float64)
    passes = _passes(steps, trial, len(seconds["stall"]))
    spent = dict.fromkeys((*PHASES, VALIDATION, OTHER), 0.0)
    ranks, count = start.shape
    last = np.zeros(ranks, dtype=np.int64)
    left = np.zeros(ranks)  # when each rank left the meeting before, on its own clock
    saved = np.zeros(ranks)  # its checkpoint since then

    def meet(took: Floats, parts: Mapping[str, Floats]) -> int:
        """The rank that comes last to a meeting, whose parts count. took: seconds of ranks since the meeting before."""
        critical = int(took.argmax())
        for name, of_ranks in parts.items():
            spent[name] += float(of_ranks[critical])
        return critical

    for step in range(count):
        waits = {name: seconds[name][:, step] for name in BEFORE_MEETING}
        came = start[:, step] + sum(waits.values(), np.zeros(ranks))
        last[meet(came - left, waits | {"checkpoint": saved, OTHER: start[:, step] - left - saved})] += 1
        spent["exchange"] += float(seconds["exchange"][:, step].min())
        left, saved = came + seconds["exchange"][:, step], seconds["checkpoint"][:, step]
        if step in passes:
            whole, busy = passes[step]
            meet(saved + busy, {"checkpoint": saved, VALIDATION: whole})
            left, saved = left + saved + whole, np.zeros(ranks)
    meet(loop - left, {"checkpoint": saved, OTHER: loop - left - saved})
    shown = {name: value for name, value in spent.items() if value or name in ("stall", "compute", "exchange")}
    return CriticalPath(shown, last.tolist(), float(loop.mean()))


def _passes(steps: Steps, trial: int, ranks: int) -> dict[int, tuple[Floats, Floats]]:
    """The validation passes by the step that they follow: seconds with the meeting at their end, and without, [ranks].

    Results of old versions do not know what a pass took without its meeting; there all ranks count as equally slow.
    """
    if VALIDATION not in steps:
        return {}
    whole = np.asarray(steps[VALIDATION][trial], dtype=np.float64)
    parts = [steps[name][trial] for name in ("validation_stall", "validation_busy") if name in steps]
    busy = np.sum(parts, axis=0) if parts else np.zeros((ranks, whole.shape[1]))
    ends = {int(epoch): step for step, epoch in enumerate(steps["epoch"])}
    return {
        ends[int(epoch)]: (whole[:, number], busy[:, number]) for number, epoch in enumerate(steps["validation_epoch"])
    }
