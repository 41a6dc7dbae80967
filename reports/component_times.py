"""What each component of a run took: on the trainers' threads, where they add up to the loop, and on other threads."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlio_bench.reports.accounting import ITERATION, exclusive
from dlio_bench.reports.interval_lists import length, merged
from dlio_bench.reports.spans import Span


@dataclass(frozen=True)
class ComponentTime:
    """Seconds of a component over all epochs.

    trainer: what it took itself on the trainer's thread of each rank, without spans inside it, [ranks]. others: the
    same on all other threads and processes of a rank. merged: in which any rank was in it; summed: of all its spans.
    """

    name: str
    calls: int
    trainer: Sequence[float]
    others: Sequence[float]
    merged_seconds: float
    summed_seconds: float

    @property
    def trainer_mean(self) -> float:
        """Mean of ranks."""
        return sum(self.trainer) / len(self.trainer)

    @property
    def others_mean(self) -> float:
        """Mean of ranks."""
        return sum(self.others) / len(self.others)


def component_times(spans: Sequence[Span], ranks: int) -> list[ComponentTime]:
    """The components of a run by what they took themselves; what is inside another span counts there alone.

    A trainer's thread is the one that has 'Training Iteration' spans.
    """
    trainers = {_thread(span) for span in spans if span.component == ITERATION}
    on_trainers = exclusive(span for span in spans if _thread(span) in trainers)
    elsewhere = exclusive(span for span in spans if _thread(span) not in trainers)
    by_name: dict[str, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.component, []).append(span)
    rows = [
        ComponentTime(
            name=name,
            calls=len(of_name),
            trainer=[on_trainers.get(rank, {}).get(name, 0.0) for rank in range(ranks)],
            others=[elsewhere.get(rank, {}).get(name, 0.0) for rank in range(ranks)],
            merged_seconds=length(merged((span.start, span.end) for span in of_name)),
            summed_seconds=sum(max(0.0, span.seconds) for span in of_name),
        )
        for name, of_name in by_name.items()
    ]
    return sorted(rows, key=lambda row: (-row.trainer_mean, -row.others_mean))


def _thread(span: Span) -> tuple[int, int, str]:
    return span.rank, span.process, span.thread
