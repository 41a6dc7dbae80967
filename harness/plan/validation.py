"""Validation passes: which epochs they follow, and what a rank reads in each."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import Ids, Order, Shape


class Passes(Struct, frozen=True):
    """The passes of a trial over the validation split: `order` deals `samples` to each rank, after each of `epochs`.

    shape: of the split (`first`: its first id). Unlike a training epoch, a pass leaves out only samples that do not
    divide by the ranks. Its last batch may be small, since ranks exchange no gradients.
    """

    order: Order
    shape: Shape
    samples: int
    epochs: tuple[int, ...]

    def batches(self, rank: int, number: int, seed: int) -> Sequence[Ids]:
        """The batches of a rank in pass `number` (from 0 on), int64 [at most batch] each, as many on every rank."""
        ids = self.order(_single(self.shape), rank, number, seed)[: self.samples, 0]
        return [ids[at : at + self.shape.batch] for at in range(0, len(ids), self.shape.batch)]


def epochs_of(epochs: int, every: int) -> tuple[int, ...]:
    """The epochs that a pass follows: every `every`-th of `epochs`."""
    return tuple(range(every - 1, epochs, every))


def share(order: Order, shape: Shape) -> int:
    """Samples that every rank gets in a pass. UsageError when that is none."""
    samples = order.fit(_single(shape)).steps
    if not samples:
        raise UsageError(
            f"{shape.ranks} ranks cannot share {shape.samples} validation samples. Use fewer ranks, a larger dataset, "
            "or --validation none."
        )
    return samples


def _single(shape: Shape) -> Shape:
    """The shape dealt sample by sample and never padded, so that no validation sample counts twice."""
    return replace(shape, batch=1, last="drop")
