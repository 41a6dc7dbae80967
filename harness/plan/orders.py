"""Orders: which sample ids a rank asks for, in which sequence, in one epoch.

An order is a pure function (shape, rank, epoch, seed) -> int64 [steps, batch]. Random orders come from raw
Philox words and integer operations only, so that every machine and NumPy version makes the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """How an epoch is cut: `samples` over `ranks` in local batches of `batch`; what does not fill a step is dropped."""

    samples: int
    ranks: int
    batch: int

    @property
    def steps(self) -> int:
        """Whole steps in an epoch."""
        return self.samples // (self.ranks * self.batch)

    @property
    def dropped(self) -> int:
        """Samples an epoch leaves out because they do not fill a step."""
        return self.samples - self.steps * self.ranks * self.batch


def permutation(samples: int, epoch: int, seed: int) -> Ids:
    """The permutation of range(samples) that every rank draws alike for this epoch: a stable sort of Philox words."""
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(samples)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def sequential(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:  # noqa: ARG001 - orders share one signature
    """Each rank reads its own contiguous share of the dataset from front to back, alike every epoch."""
    share = shape.steps * shape.batch
    return np.arange(rank * share, (rank + 1) * share, dtype=np.int64).reshape(shape.steps, shape.batch)


def global_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """All samples permuted anew each epoch; step s of rank i is slice [i*b, (i+1)*b) of global batch s (NoPFS)."""
    used = shape.steps * shape.ranks * shape.batch
    order = permutation(shape.samples, epoch, seed)[:used]
    return order.reshape(shape.steps, shape.ranks, shape.batch)[:, rank, :]


Order = Callable[[Shape, int, int, int], Ids]

ORDERS: dict[str, Order] = {
    "sequential": sequential,
    "global-shuffle": global_shuffle,
}


def every_sample_once(samples: int, ranks: int, rank: int, batch: int) -> list[Ids]:
    """This rank's share of an untimed pass over the whole dataset, nothing dropped: batches of at most `batch` ids."""
    first, last = rank * samples // ranks, (rank + 1) * samples // ranks
    return [np.arange(at, min(at + batch, last), dtype=np.int64) for at in range(first, last, batch)]
