"""What acts beside the trials of a rank, and the moments that loop, trial and rank offer it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from msgspec import Struct

from dlio_bench.batches import Batch, Ids
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.site import RankSite
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.trainer import Trainer

Tell: TypeAlias = Callable[[dict[str, Any]], None]
After: TypeAlias = Callable[[int, Iterator[Batch | None]], None]  # gets the step of the loop, and the batches to come


class Rank(Struct, frozen=True):
    """Where trials run. peers: the ranks of this rank's model; folder: the job's; tell: events, rank 0 alone says
    them."""

    job: Job
    site: RankSite
    comm: Comm
    peers: Comm
    folder: Path
    tell: Tell


class Behind(Struct, frozen=True):
    """What readers deliver behind an epoch of a trial, inside its clock. number: in plans and costs, as an epoch's.

    batches: of a rank, by its number among those of its model, for the seed of a trial.
    """

    epoch: int
    number: int
    batches: Callable[[int, int], Sequence[Ids]]


class Running(Struct, frozen=True):
    """A trial at work, of a reader of this name. copies: whether this process also reads copies from a device.

    behind: the batches that this rank gets behind epochs.
    """

    name: str
    row: Policy
    reader: Reader
    trainer: Trainer
    times: TrialTimes
    copies: bool
    behind: Mapping[int, Sequence[Ids]]


class Segment(Struct, frozen=True):
    """Epochs of a trial with no pause in between: one loop. log: of its steps."""

    trial: Running
    epochs: Sequence[int]
    per_epoch: int
    log: StepLog

    @property
    def is_first(self) -> bool:
        """Whether the trial begins with it."""
        return self.epochs[0] == 0


class Observer:
    """Acts beside the trials of all readers on a rank. Every moment is silent unless an observer gives it a meaning.

    Moments lie in each other: trial, segment, loop. Between `before_segment` and `before_loop` the reader's session
    may open, between `after_loop` and `after_segment` it may close. The list of observers is called from its first to
    its last before something, and from its last to its first after it. All ranks go through the same moments. What an
    observer found is left in the trial's `times`.
    """

    phases: ClassVar[tuple[str, ...]] = ()  # of a step, that it fills

    def __enter__(self) -> Self:
        """Ready for trials."""
        return self

    def __exit__(self, *_: object) -> None:
        """No trial follows."""

    def before_trial(self, trial: Running) -> None:
        """The plan of a trial is made; its clock has not started."""

    def before_segment(self, segment: Segment) -> None:
        """Readers rest."""

    def before_loop(self, segment: Segment) -> None:
        """The clock starts next."""

    def at_epoch(self, segment: Segment, epoch: int) -> None:
        """An epoch begins, inside the clock."""

    def after_step(self, segment: Segment) -> Mapping[int, After]:  # noqa: ARG002 - of those that ask for steps
        """What to call inside the clock after which steps of the loop. Asked before it starts."""
        return {}

    def after_loop(self, segment: Segment) -> None:
        """The clock has stopped."""

    def after_segment(self, segment: Segment) -> None:
        """Readers rest again."""

    def after_trial(self, trial: Running) -> None:
        """The trial is over, and all times of the loop and the trainer are in its `times`."""
