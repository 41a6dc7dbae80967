"""Where a rank's time went: one row a step, one column a phase, in seconds of the monotonic clock."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench import recorder
from dlio_bench.reports.numbers.metrics import PHASES

# The column of StepLog.clock for when a rank comes to the barrier. It leaves in the next column.
MEETING = PHASES.index("exchange")


def beyond_last(left: npt.NDArray[np.float64], last: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Seconds that a rank spent in barriers after the last rank had come, float64 [].

    left: when this rank left each of them; last: when the last rank came; float64 [steps], by the clock of one host.
    """
    return np.asarray(np.maximum(left - last, 0.0).sum())


class StepLog(Struct, frozen=True):
    """The exclusive phases of a rank's trainer thread in one trial. Each validation pass has another log.

    clock: float64 [steps, 7], at the start of a step, and at the end of each phase in the order of PHASES; compute
    before and after the exchange counts as one phase.
    samples: uint64 [steps, batch], marks of the delivered samples; ids: int64 [steps, batch], their ids, -1 if a batch
    is smaller.
    """

    clock: npt.NDArray[np.float64]
    samples: npt.NDArray[np.uint64]
    ids: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, steps: int, batch: int, **about: object) -> "StepLog":
        """An empty log of every step, in memory that is already mapped; where spans are recorded, beside them.

        about: what is said there of the clock, see `recorder.array`.
        """
        return cls(
            recorder.array((steps, len(PHASES) + 1), **about),
            np.zeros((steps, batch), dtype=np.uint64),
            np.full((steps, batch), -1, dtype=np.int64),
        )

    def part(self, steps: slice) -> "StepLog":
        """Some of its steps, in the same memory."""
        return StepLog(self.clock[steps], self.samples[steps], self.ids[steps])

    def phases(self) -> dict[str, npt.NDArray[np.float64]]:
        """Seconds of each phase, float64 [steps]."""
        spent = np.diff(self.clock, axis=1)
        return {name: spent[:, column] for column, name in enumerate(PHASES)}
