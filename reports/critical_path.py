"""The critical path of a trial: which rank the others waited for, meeting by meeting, and what it did. Pure functions.

Ranks meet behind every step, and behind a validation pass. What a rank spends from one meeting to the next is a length
of time on its own clock, so that clocks of hosts are never compared: the rank that spends most comes last. The others
wait for it in the exchange.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from dlio_bench.reports.meetings import Floats, Steps, phase
from dlio_bench.reports.metrics import PHASES
from dlio_bench.reports.trainer_spans import OTHER, VALIDATION
from dlio_bench.reports.types import Plan

BEFORE_MEETING = PHASES[: PHASES.index("exchange")]


class CriticalPath(Struct, frozen=True):
    """Seconds of the job by phase, on the rank that came last to each meeting.

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

    Between two meetings a rank has: what is left of the step before (its checkpoint, the validation pass), what is in
    no phase, and the phases of the step before its exchange. A validation pass ends in a meeting of its own.
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
    for step in range(count):
        waits = {name: seconds[name][:, step] for name in BEFORE_MEETING}
        work = sum(waits.values(), np.zeros(ranks))
        came = start[:, step] + work
        critical = int((came - left).argmax())
        last[critical] += 1
        for name, of_ranks in waits.items():
            spent[name] += float(of_ranks[critical])
        spent["checkpoint"] += float(saved[critical])
        spent[OTHER] += float((start[:, step] - left - saved)[critical])
        spent["exchange"] += float(seconds["exchange"][:, step].min())
        left, saved = came + seconds["exchange"][:, step], seconds["checkpoint"][:, step]
        if step in passes:
            whole, busy = passes[step]
            critical = int((saved + busy).argmax())
            spent["checkpoint"] += float(saved[critical])
            spent[VALIDATION] += float(whole[critical])
            left, saved = left + saved + whole, np.zeros(ranks)
    critical = int((loop - left).argmax())
    spent["checkpoint"] += float(saved[critical])
    spent[OTHER] += float((loop - left - saved)[critical])
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
