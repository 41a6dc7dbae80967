"""Rows of spans from what the clock of a trainer's loop says, and rows of threads with the trainer's steps."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import validation_after
from dlio_bench.components import CODE
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.recorder import NO_EPOCH, NOWHERE, ROW
from dlio_bench.reports.numbers.metrics import PHASES
from dlio_bench.reports.traces.timeline import Column

LOOP, ITERATION, PASS = (CODE[name] for name in ("Training Loop", "Training Iteration", "validation"))
OF_PHASES = tuple(  # what the phases of a step are, in the order of PHASES
    CODE[name] for name in ("Call to Next Batch", "check", "convert", "compute", "exchange", "Checkpoint Listener")
)
Table = npt.NDArray[np.void]


def trainer_rows(times: TrialTimes) -> Table:
    """What the clock of the loop says of the trainer's thread: its loop, steps, their phases, validation passes."""
    steps = times.log.clock
    epochs = np.repeat(np.arange(len(times.plan)), [len(epoch) for epoch in times.plan])
    parts = [table_of(LOOP, *np.array(times.loops).T)]
    parts += [steps_rows(steps, epochs, np.arange(len(steps)), ITERATION)]
    missing = [code for name, code in zip(PHASES, OF_PHASES, strict=True) if name in times.missing_phases]
    for pass_ in times.passes:
        clock = pass_.log.clock
        epoch = np.full(len(clock), validation_after(pass_.epoch))
        parts += [table_of([PASS], [clock[0, 0]], [clock[-1, -1]], epoch[:1]), steps_rows(clock, epoch, NOWHERE, None)]
    table = np.concatenate(parts)
    return table[~np.isin(table["component"], missing)]


def steps_rows(clock: Column, epochs: Column, numbers: Any, whole: int | None) -> Table:
    """Spans of the rows of a StepLog's clock, [steps, 7]: each step, if it has a component, and its phases."""
    bounds = [(whole, 0, clock.shape[1] - 1)] if whole is not None else []
    bounds += [(code, column, column + 1) for column, code in enumerate(OF_PHASES)]
    parts = [table_of(code, clock[:, begin], clock[:, end], epochs, numbers) for code, begin, end in bounds]
    table = np.concatenate(parts)
    return table[table["end"] > table["start"]]


def table_of(component: Any, start: Any, end: Any, epoch: Any = NO_EPOCH, step: Any = NOWHERE) -> Table:
    """Rows of the trainer's thread: as many as there are starts."""
    table = np.zeros(len(start), ROW)
    table["component"], table["start"], table["end"], table["epoch"], table["step"] = component, start, end, epoch, step
    table["file"] = table["offset"] = NOWHERE
    return table


def placed(table: Table, of_trainer: Table, steps_of_epoch: int) -> Table:
    """Spans with the steps of the trial, as the trainer's have them, and not those of an epoch, as threads record them.

    Spans without an epoch get the epoch and step that the trainer was at when they began; without a step alone, the
    step, where it is of the same epoch.
    """
    steps = of_trainer[(of_trainer["component"] == OF_PHASES[0])]
    steps = steps[np.argsort(steps["start"])]
    table = table.copy()
    numbered = (table["step"] != NOWHERE) & (table["epoch"] >= 0)
    table["step"][numbered] += table["epoch"][numbered] * np.int32(steps_of_epoch)
    table["step"][table["epoch"] < 0] = NOWHERE  # those of validation passes have no number
    if not len(steps):
        return table
    within = np.searchsorted(steps["start"], table["start"], side="right") - 1
    at = steps[np.maximum(within, 0)]
    homeless = (within >= 0) & (table["epoch"] == NO_EPOCH)
    table["epoch"][homeless] = at["epoch"][homeless]
    behind = (within >= 0) & (table["step"] == NOWHERE) & (table["epoch"] == at["epoch"])
    table["step"][behind] = at["step"][behind]
    return table
