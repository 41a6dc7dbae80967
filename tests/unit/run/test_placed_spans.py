"""Spans of a rank's threads get the steps of the trial, and what the trainer was at where they tell nothing of it."""

from typing import Any

import numpy as np

from dlio_bench.components import CODE
from dlio_bench.harness.commands.run.measured.spans import number_steps
from dlio_bench.recorder import NO_EPOCH, NOWHERE, ROW

STEPS = 2  # of an epoch
WAIT, READ, CLOSE = CODE["Call to Next Batch"], CODE["pread"], CODE["close"]


def rows(*spans: tuple[int, float, int, int]) -> Any:
    """(component, start, epoch, step) of each."""
    table = np.zeros(len(spans), ROW)
    for name, column in zip(("component", "start", "epoch", "step"), zip(*spans, strict=True), strict=True):
        table[name] = column
    return table


# two epochs, with a validation pass of one batch after the first
TRAINER = rows(
    (WAIT, 0.0, 0, 0), (WAIT, 1.0, 0, 1), (WAIT, 2.0, ~0, NOWHERE), (WAIT, 3.0, 1, 2), (WAIT, 4.0, 1, 3),
)  # fmt: skip


def test_a_step_of_an_epoch_becomes_that_of_the_trial() -> None:
    ahead = rows((READ, 0.1, 0, 1), (READ, 0.2, ~0, 0), (READ, 0.3, 1, 0), (READ, 0.4, 1, 1))
    found = number_steps(ahead, TRAINER, STEPS)
    assert found["epoch"].tolist() == [0, ~0, 1, 1]
    assert found["step"].tolist() == [1, NOWHERE, 2, 3]
    assert ahead["step"].tolist() == [1, 0, 0, 1]  # as it was


def test_what_has_no_epoch_belongs_to_what_the_trainer_was_at() -> None:
    spans = rows(*((CLOSE, start, NO_EPOCH, NOWHERE) for start in (-0.5, 0.5, 1.0, 2.5, 4.9)))
    found = number_steps(spans, TRAINER, STEPS)
    assert found["epoch"].tolist() == [NO_EPOCH, 0, 0, ~0, 1]
    assert found["step"].tolist() == [NOWHERE, 0, 1, NOWHERE, 3]


def test_what_has_no_step_alone_gets_one_of_its_own_epoch() -> None:
    found = number_steps(
        rows((READ, 1.5, 0, NOWHERE), (READ, 1.5, ~0, NOWHERE), (READ, 1.5, 1, NOWHERE)), TRAINER, STEPS
    )
    assert found["epoch"].tolist() == [0, ~0, 1]
    assert found["step"].tolist() == [1, NOWHERE, NOWHERE]
