"""What the timed loop does with a batch: a trainer, emulated by waiting; the real one is in `network`."""

from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.batches import Batch
from dlio_bench.harness.training.compute import wait
from dlio_bench.reports.document.trials import Inference, Reduced


class StepOverhead(Struct, frozen=True):
    """Seconds of a step that were not compute: making tensors of a batch, and waiting for the gradients' exchange."""

    convert: float = 0.0
    exchange: float = 0.0


class Trained(Struct, frozen=True):
    """What a training of one trial left on one rank.

    losses: float64 [steps], means over this rank's batches. summary: all reductions from begin to end, and checkpoints.
    """

    losses: npt.NDArray[np.float64]
    summary: Reduced
    phases: ClassVar[tuple[str, ...]] = ("convert", "checkpoint")

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What there is by step, [steps]."""
        return {"loss": self.losses}


class TrainerRecord(Protocol):
    """What a trainer left on one rank. phases: of a step, that not every trainer has; summary: for the result."""

    @property
    def phases(self) -> tuple[str, ...]:
        """See above."""
        ...

    @property
    def summary(self) -> Reduced | Inference | None:
        """See above."""
        ...

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What there is by step, [steps]."""
        ...


class Trainer(Protocol):
    """Takes the batches of one trial after another. Nothing of a batch is used when a call has returned."""

    @property
    def meets(self) -> bool:
        """Whether ranks meet in every step, so that no barrier has to make them."""
        ...

    @property
    def loss(self) -> float | None:
        """That of this trial's last step on this rank; None before it, and where nothing learns. For any thread."""
        ...

    def begin(self, reader: str, trial: int, seed: int) -> None:
        """A trial begins, before its clock does; every trial begins with the same weights."""
        ...

    def step(self, batch: Batch) -> StepOverhead:
        """A training step. Diverged where the loss is no number; EnvironmentFailure where a rank does not come."""
        ...

    def save(self) -> None:
        """Write a checkpoint if one is due behind this step."""
        ...

    def finish(self) -> float:
        """No step follows in this loop: compute what is left of those before, and return its seconds."""
        ...

    def forward(self, batch: Batch) -> None:
        """A batch of a validation pass goes forward."""
        ...

    def score(self) -> dict[str, float]:
        """A pass is over: its metrics by name, over all ranks, which call it together; empty where nothing is known."""
        ...

    def end(self) -> TrainerRecord | None:
        """The trial is over: what it left; None where no network was at work."""
        ...


class Emulated(Struct, frozen=True):
    """Computes by waiting: step_seconds a step, sample_seconds a sample of a validation pass; 0 for no compute."""

    step_seconds: float = 0.0
    sample_seconds: float = 0.0
    meets: bool = False
    loss: None = None

    def begin(self, reader: str, trial: int, seed: int) -> None:
        """See Trainer."""

    def step(self, batch: Batch) -> StepOverhead:  # noqa: ARG002 - a trainer's
        """See Trainer."""
        wait(self.step_seconds)
        return NOTHING

    def save(self) -> None:
        """See Trainer."""

    def finish(self) -> float:
        """See Trainer."""
        return 0.0

    def forward(self, batch: Batch) -> None:
        """See Trainer."""
        wait(self.sample_seconds * len(batch.ids))

    def score(self) -> dict[str, float]:
        """See Trainer."""
        return {}

    def end(self) -> None:
        """See Trainer."""


NOTHING = StepOverhead()
