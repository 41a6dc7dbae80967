"""What the trainers of a run did in one trial, from its step times: where the time went, phases, spans."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from dlio_bench.reports.meetings import Floats, Steps, phase
from dlio_bench.reports.metrics import PHASES
from dlio_bench.reports.spans import Span

VALIDATION, OTHER = "validation", "other"
# What the NERSC study calls them. A whole step is its 'Training Iteration', the loop its 'Training Loop'.
COMPONENTS = {"stall": "Call to Next Batch", "checkpoint": "Checkpoint Listener"}
ITERATION, LOOP = "Training Iteration", "Training Loop"


class Row(Struct, frozen=True):
    """Seconds in a phase, mean of ranks: in the first epoch, in a later one, in the loop; and of the worst rank."""

    phase: str
    first_epoch: float
    later_epoch: float | None
    loop: float
    share: float  # of the mean loop
    worst_rank: int
    worst: float  # seconds in the loop


def breakdown(steps: Steps, trial: int) -> list[Row]:
    """Exclusive phases of a trial; with `other`, which is in no phase, they add up to the loop of each rank.

    trial: position in the arrays. `other` has no value by epoch, as what lies between epochs belongs to none.
    """
    epochs = steps["epoch"]
    loop = np.asarray(steps["loop"][trial], dtype=np.float64)
    by_phase = {name: phase(steps, name)[trial] for name in PHASES}
    rows = [
        _row(name, _by_epoch(seconds, epochs), seconds.sum(axis=1), loop)
        for name, seconds in by_phase.items()
        if name in steps
    ]
    totals = np.sum([seconds.sum(axis=1) for seconds in by_phase.values()], axis=0)
    if VALIDATION in steps:
        passes = np.asarray(steps[VALIDATION][trial], dtype=np.float64)
        by_epoch = _by_epoch(passes, steps["validation_epoch"], int(epochs.max()) + 1)
        rows.append(_row(VALIDATION, by_epoch, passes.sum(axis=1), loop))
        totals = totals + passes.sum(axis=1)
    rows.append(_row(OTHER, np.zeros((len(loop), 0)), loop - totals, loop))
    return rows


def _row(name: str, by_epoch: Floats, totals: Floats, loop: Floats) -> Row:
    """by_epoch: [ranks, epochs]; totals, loop: [ranks]."""
    means = by_epoch.mean(axis=0)
    worst = int(totals.argmax())
    return Row(
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
        yield Span(-1, rank, "run", LOOP, 0.0, float(loop[rank]), float(loop[rank]), rank, thread)
        whole: dict[int, list[Phase]] = {}
        step = 0
        for entry in phases(steps, trial, [rank]):
            step = entry.step if entry.step >= 0 else step  # a pass follows its step
            if entry.step >= 0 or with_passes:
                whole.setdefault(step, []).append(entry)
            if entry.name in COMPONENTS:
                end = entry.start + entry.seconds
                component = COMPONENTS[entry.name]
                yield Span(entry.epoch, rank, "run", component, entry.start, end, entry.seconds, rank, thread)
        for of_step in whole.values():
            start, end = of_step[0].start, of_step[-1].start + of_step[-1].seconds
            yield Span(of_step[0].epoch, rank, "run", ITERATION, start, end, end - start, rank, thread)
