"""What reading and training took in a trial, by several accountings. Pure functions of its spans.

Two accountings are the NERSC study's: HEPCNNB's additive one and CDB's merged intervals. Sources: its scripts
`plot_scaling_hep_data_results.py` and `plot_scaling_climate_data_results.py`. The third is ours and needs the trainers'
spans alone: how long they waited for data.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

from msgspec import Struct

from dlio_bench.components import COMPONENTS
from dlio_bench.reports.traces.span_pattern import NODE_READS, UNPLACED
from dlio_bench.reports.traces.timeline import BEFORE, Span

READ_FILE, LOAD_FILE, ITERATION, CHECKPOINT = "HDF5 File Read", "Load File", "Training Iteration", "Checkpoint Listener"
READ_IMAGE, NEXT_BATCH = "Time to Read Single Image", "Call to Next Batch"
HEP_EPOCHS = 5  # of the study, whose script leaves out what later epochs hold, except checkpoints
ADDITIVE, MERGED, WAITING = "additive", "merged", "waiting"
TITLES = {
    ADDITIVE: "HEPCNNB's accounting: seconds that follow each other on a node, mean of nodes",
    MERGED: "CDB's accounting: seconds in which any rank reads, or trains (merged intervals)",
    WAITING: "Waiting: seconds of the steps that a trainer waited for data, mean of ranks",
}
NAMES = {ADDITIVE: "HEPCNNB's accounting", MERGED: "CDB's accounting", WAITING: "waiting for data"}
READING = {"hepcnnb": READ_FILE, "cdb": READ_IMAGE}  # as the study calls it
# What reads the dataset's files, and not a copy or a tier of the node, where the study has no name for it.
READ_COMPONENTS = {part.name for part in COMPONENTS if part.kind == "read"} - set(NODE_READS)

Interval = tuple[float, float]  # start and end, in seconds


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """As a sorted list of intervals that lie apart; those that touch become one, as in the CDB study.

    The study's function is `merge_and_add_common_intervals`. An interval that ends before it begins is left out.
    """
    apart: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] <= interval[1]):
        if apart and start <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], end)
        else:
            apart.append((start, end))
    return apart


def length(apart: Iterable[Interval]) -> float:
    """Seconds of intervals that lie apart."""
    return sum(end - start for start, end in apart)


def intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """What two unions have in common, as a union."""
    common: list[Interval] = []
    at = other = 0
    while at < len(first) and other < len(second):
        start, end = max(first[at][0], second[other][0]), min(first[at][1], second[other][1])
        if start < end:
            common.append((start, end))
        if first[at][1] < second[other][1]:
            at += 1
        else:
            other += 1
    return common


def union_of(spans: Iterable[Span], components: Collection[str]) -> list[Interval]:
    """When any of the components was under way."""
    return union((span.start, span.end) for span in spans if span.component in components)


class Additive(Struct, frozen=True):
    """Seconds a node, of one epoch or of all."""

    read: float
    load: float
    training: float
    checkpoint: float

    @property
    def total(self) -> float:
        """All four."""
        return self.read + self.load + self.training + self.checkpoint


def additive(spans: Iterable[Span], nodes: int, epochs: int | None = HEP_EPOCHS) -> dict[int, Additive]:
    """HEPCNNB's accounting by epoch: parts that follow each other on a node, added up over ranks, per node.

    Read = sum of 'HDF5 File Read' / N; Load = ('Load File' - 'HDF5 File Read') / N; Training = ('Training Iteration' -
    'Load File') / N - Checkpoint; Checkpoint = sum of 'Checkpoint Listener' of rank 0 (-1 in a log without ranks), not
    divided: in the study it alone has them, and what other ranks spend there is in their iterations as it is.
    Epoch -1 counts as 0. epochs: later ones are left out, but for their checkpoints, as the study's script does after
    the fifth; None: all are in.
    """
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        epoch = 0 if span.epoch == BEFORE else span.epoch
        if span.component == CHECKPOINT and span.rank > 0:
            continue
        if epochs is None or epoch < epochs or span.component == CHECKPOINT:
            sums[epoch][span.component] += max(0.0, span.seconds)
    return {
        epoch: Additive(
            read=of[READ_FILE] / nodes,
            load=(of[LOAD_FILE] - of[READ_FILE]) / nodes,
            training=(of[ITERATION] - of[LOAD_FILE]) / nodes - of[CHECKPOINT],
            checkpoint=of[CHECKPOINT],
        )
        for epoch, of in sorted(sums.items())
        if of.keys() & {READ_FILE, LOAD_FILE, ITERATION, CHECKPOINT}
    }


def sum_of_epochs(parts: Iterable[Additive]) -> Additive:
    """Of all epochs."""
    rows = list(parts)
    return Additive(*(sum(getattr(row, name) for row in rows) for name in Additive.__struct_fields__))


def merged_latency(spans: Iterable[Span], *components: str) -> dict[int, float]:
    """CDB's accounting: by epoch, the seconds in which at least one rank is in a component, clocks not corrected.

    components: one in the study; of several, the seconds in which a rank is in any of them.

    Epoch -1 counts as 0 ("Asynchronous Read"). The sum over epochs is the study's latency: epochs may overlap.
    """
    by_epoch: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if span.component in components:
            by_epoch[max(span.epoch, 0)].append(span)
    return {epoch: length(union_of(of_epoch, components)) for epoch, of_epoch in sorted(by_epoch.items())}


def overlap_seconds(spans: Sequence[Span], *parts: Sequence[str]) -> float:
    """Seconds that `merged_latency` of several parts adds up more than once: where parts or epochs overlap.

    The rest of the sum is what elapsed while any rank was in any part. parts: the components of each.
    """
    sums = sum(sum(merged_latency(spans, *components).values()) for components in parts)
    elapsed = length(union_of(spans, {component for components in parts for component in components}))
    return max(0.0, round(sums - elapsed, 9))  # nanoseconds: less is noise of the sums


class Overlap(Struct, frozen=True):
    """Seconds of one component and of another, mean of ranks, and how long both were under way on a rank."""

    first: float
    second: float
    both: float


def overlap(spans: Sequence[Span], first: Collection[str], second: str) -> Overlap:
    """Seconds of any of some components and of another: each rank's unions, on its own clock, and what they share."""
    rows = []
    for rank in sorted({span.rank for span in spans}):
        of_rank = [span for span in spans if span.rank == rank]
        left, right = union_of(of_rank, first), union_of(of_rank, [second])
        rows.append((length(left), length(right), length(intersection(left, right))))
    return Overlap(*(sum(row[at] for row in rows) / max(1, len(rows)) for at in range(3)))


def exclusive(spans: Iterable[Span]) -> dict[int, Mapping[str, float]]:
    """By rank, seconds that a component took itself: less those of spans inside it, in the same process and thread.

    Over one thread they add up to the union of its spans.
    """
    threads: dict[tuple[int, int, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.start <= span.end:
            threads[span.rank, span.process, span.thread].append(span)
    totals: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (rank, _, _), of_thread in threads.items():
        for start, end, span in latest(of_thread):
            totals[rank][span.component] += end - start
    return {rank: dict(components) for rank, components in sorted(totals.items())}


class _Timed(Protocol):
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


T = TypeVar("T", bound=_Timed)


def latest(actions: Iterable[T]) -> Iterator[tuple[float, float, T]]:
    """(start, end, action): which action of one thread began last, wherever one is under way."""
    begun = sorted(actions, key=lambda action: (action.start, -action.end))
    moments = sorted({moment for action in begun for moment in (action.start, action.end)})
    under_way: list[tuple[int, T]] = []  # a heap: the one that began last comes first
    at = 0
    for start, end in pairwise(moments):
        while at < len(begun) and begun[at].start <= start:
            heapq.heappush(under_way, (-at, begun[at]))
            at += 1
        while under_way and under_way[0][1].end <= start:
            heapq.heappop(under_way)
        if under_way:
            yield start, end, under_way[0][1]


class Account(Struct, frozen=True):
    """Seconds of parts by epoch (from 0), the part of I/O first. how: ADDITIVE, MERGED or WAITING.

    counted_twice: seconds of all parts and epochs that are in more than one of them.
    """

    how: str
    epochs: Mapping[int, Mapping[str, float]]
    counted_twice: float = 0.0

    @property
    def totals(self) -> dict[str, float]:
        """Seconds of each part, all epochs."""
        sums: dict[str, float] = defaultdict(float)
        for parts in self.epochs.values():
            for name, seconds in parts.items():
                sums[name] += seconds
        return dict(sums)

    @property
    def share(self) -> float | None:
        """The share of I/O in all epochs; None if they took no time."""
        return _first_share(self.totals)

    @property
    def shares(self) -> dict[int, float | None]:
        """The share of I/O in each epoch."""
        return {epoch: _first_share(parts) for epoch, parts in self.epochs.items()}


def _first_share(parts: Mapping[str, float]) -> float | None:
    total = sum(parts.values())
    return next(iter(parts.values())) / total if total > 0 else None


def reading(workload: str, names: Collection[str]) -> list[str]:
    """Those of the components of a trial that read the dataset's files: the study's of this workload, else ours.

    Empty where no reader's spans were recorded, and where TensorFlow reads by itself: its batches come after reading,
    decoding and waiting, of which nobody knows the parts.
    """
    if not set(UNPLACED).isdisjoint(names):
        return []
    published = READING.get(workload, "")
    return [published] if published in names else sorted(READ_COMPONENTS.intersection(names))


def accounts(spans: Sequence[Span], nodes: int, readers: Sequence[str]) -> list[Account]:
    """The study's accounting that these spans allow, if any. readers: components that read.

    A validation pass counts as training where it is a part of the step before it (`timelogger.with_passes`).
    """
    if readers == [READ_FILE]:
        rows, names = additive(spans, nodes, epochs=None), Additive.__struct_fields__
        return [Account(ADDITIVE, {at: {name: getattr(row, name) for name in names} for at, row in rows.items()})]
    if readers:
        read, training = merged_latency(spans, *readers), merged_latency(spans, ITERATION)
        epochs = sorted({*read, *training})
        both = {epoch: {"read": read.get(epoch, 0.0), "training": training.get(epoch, 0.0)} for epoch in epochs}
        return [Account(MERGED, both, overlap_seconds(spans, readers, [ITERATION]))]
    return []


def waiting(spans: Sequence[Span]) -> Account:
    """Seconds of steps in which a trainer waited for its batch, and the rest of its steps, mean of ranks.

    spans: of the trainers' steps, without validation passes.
    """
    ranks = len({span.rank for span in spans if span.component == ITERATION})
    sums: dict[str, dict[int, float]] = {NEXT_BATCH: defaultdict(float), ITERATION: defaultdict(float)}
    for span in spans:
        if span.component in sums:
            sums[span.component][span.epoch] += span.seconds / ranks
    waited = sums[NEXT_BATCH]
    epochs = sorted(sums[ITERATION].items())
    return Account(WAITING, {at: {"waiting": waited[at], "rest": seconds - waited[at]} for at, seconds in epochs})
