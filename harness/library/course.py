"""Which samples every rank of a loader gets, and a reader at work on the rest of them."""

import os
from contextlib import ExitStack

from msgspec import Struct

from dlio_bench.batches import Batch, Ids
from dlio_bench.harness.plan.orders import Order, Shape, steps_of
from dlio_bench.harness.readers.session import Reader, Tally, plan_batches


class SampleSchedule(Struct, frozen=True):
    """Which samples every rank gets, epoch after epoch. reader: the name of its policy."""

    reader: str
    order: Order
    shape: Shape
    epochs: int
    seed: int

    @property
    def steps(self) -> int:
        """Batches of an epoch, on every rank."""
        return self.order.fit(self.shape).steps

    def ids(self, rank: int, epoch: int) -> Ids:
        """int64 [steps, batch]."""
        return self.order(self.shape, rank, epoch, self.seed)

    def part(self, rank: int, epoch: int, first: int = 0) -> list[Ids]:
        """The ids of each batch of an epoch, from number `first` on."""
        return steps_of(self.ids(rank, epoch)[first:])


class _Abandoned(Exception):  # noqa: N818 - nothing went wrong
    """Ends a session without its meeting with other ranks."""


class Session:
    """A reader at work on the rest of a course."""

    def __init__(self, reader: Reader, course: SampleSchedule, rank: int, epoch: int, step: int) -> None:
        def ids_read(of_rank: int, of_epoch: int) -> Ids:
            ids = course.ids(of_rank, of_epoch)[step if of_epoch == epoch else 0 :]
            return ids[ids >= 0]

        parts = [(each, course.part(rank, each, step if each == epoch else 0)) for each in range(epoch, course.epochs)]
        plan = plan_batches(reader.sample_view, parts, ids_read)
        self._stack = ExitStack()
        self._batches = self._stack.enter_context(reader.session(plan, Tally()))
        self._process = os.getpid()

    def next(self) -> Batch:
        """The next batch of the plan."""
        return next(self._batches)

    def end(self) -> None:
        """All ranks together: no thread, file or tier is left."""
        self._stack.close()

    def abandon(self) -> None:
        """The same on this rank alone: the others can go on."""
        if os.getpid() != self._process:  # a copy of the process that works with it
            return
        left = _Abandoned()
        self._stack.__exit__(_Abandoned, left, None)
