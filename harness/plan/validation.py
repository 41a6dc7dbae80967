"""Validation passes: behind which epochs they come, and what a rank reads in each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import Ids, Order, Shape


@dataclass(frozen=True)
class Passes:
    """The passes of a trial over the validation split: `samples` of each rank, dealt by `order`, behind `epochs`.

    shape: of the split (`first`: its first id). Unlike an epoch of training, a pass leaves out no more than the ranks
    cannot share: its last batch is as small as need be, since no gradients are exchanged.
    """

    order: Order
    shape: Shape
    samples: int
    epochs: tuple[int, ...]

    def batches(self, rank: int, number: int, seed: int) -> Sequence[Ids]:
        """What a rank reads in pass `number`, from 0 up: int64 [at most batch] each, as many on every rank."""
        ids = self.order(_single(self.shape), rank, number, seed)[: self.samples, 0]
        return [ids[at : at + self.shape.batch] for at in range(0, len(ids), self.shape.batch)]


def epochs_of(epochs: int, every: int) -> tuple[int, ...]:
    """The epochs that a pass follows: every `every`-th of `epochs`."""
    return tuple(range(every - 1, epochs, every))


def share(order: Order, shape: Shape) -> int:
    """Samples that each rank gets in a pass, alike on all ranks. UsageError when that is none."""
    found = order.fit(_single(shape)).steps
    if not found:
        raise UsageError(
            f"{shape.ranks} ranks cannot share {shape.samples} validation samples. Use fewer ranks, a larger dataset, "
            "or --validation none."
        )
    return found


def _single(shape: Shape) -> Shape:
    """Dealt sample by sample, and never padded: nobody counts a sample of a validation set twice."""
    return replace(shape, batch=1, last="drop")
