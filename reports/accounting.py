"""How the NERSC study turned spans into seconds of reading and training, and what is so besides. Pure functions.

Sources: `plot_scaling_hep_data_results.py` and `plot_scaling_climate_data_results.py` of the study's repository.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from dlio_bench.reports.interval_lists import Interval, length, merged, shared
from dlio_bench.reports.spans import BEFORE, Span

READ_FILE, LOAD_FILE, ITERATION, CHECKPOINT = "HDF5 File Read", "Load File", "Training Iteration", "Checkpoint Listener"
READ_IMAGE = "Time to Read Single Image"
HEP_EPOCHS = 5  # of the study, whose script leaves out what later epochs hold, except checkpoints
# Bytes of the study's formulas for bandwidth: a training and a validation file of HEPCNNB, an image of CDB.
HEP_TRAIN_BYTES, HEP_VALID_BYTES, HEP_TRAIN_FILES = 426_897_408 + 2836 * 4, 56_598_528 + 376 * 4, 1024
CDB_IMAGE_BYTES = 17_694_752


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


def summed(parts: Iterable[Additive]) -> Additive:
    """Of all epochs."""
    rows = list(parts)
    return Additive(*(sum(getattr(row, name) for row in rows) for name in ("read", "load", "training", "checkpoint")))


def hep_bandwidth(reads: int, read_seconds: float) -> float | None:
    """Bytes a second by the study's formula, from read calls and seconds a node; None without reads.

    It charges 1,024 calls with a training file and all others with a validation file, whatever they read: over several
    epochs it is too low, by 2.7 times at most. It holds for the published dataset of 1,024 training files alone.
    """
    if reads < HEP_TRAIN_FILES or not read_seconds:
        return None
    return (HEP_TRAIN_FILES * HEP_TRAIN_BYTES + (reads - HEP_TRAIN_FILES) * HEP_VALID_BYTES) / read_seconds


def merged_latency(spans: Iterable[Span], *components: str) -> dict[int, float]:
    """CDB's accounting: by epoch, the seconds in which at least one rank is in a component, clocks not corrected.

    components: one in the study; of several, the seconds in which a rank is in any of them.

    Epoch -1 counts as 0 ("Asynchronous Read"). The sum over epochs is the study's latency: epochs may overlap.
    """
    by_epoch: dict[int, list[Interval]] = defaultdict(list)
    for span in spans:
        if span.component in components:
            by_epoch[max(span.epoch, 0)].append((span.start, span.end))
    return {epoch: length(merged(intervals)) for epoch, intervals in sorted(by_epoch.items())}


def counted_twice(spans: Iterable[Span], *parts: Sequence[str]) -> float:
    """Seconds that `merged_latency` of several parts adds up more than once: where parts or epochs overlap.

    The rest of the sum is what elapsed while any rank was in any part. parts: the components of each.
    """
    known = list(spans)
    summed = sum(sum(merged_latency(known, *components).values()) for components in parts)
    union = merged(_intervals(known, {component for components in parts for component in components}))
    return max(0.0, round(summed - length(union), 9))  # nanoseconds: less is noise of the sums


def cdb_bandwidth(reads: int, merged_seconds: float) -> float | None:
    """Bytes a second by the study's formula: an image for each call, over the merged seconds of all epochs."""
    return reads * CDB_IMAGE_BYTES / merged_seconds if reads and merged_seconds else None


class Overlap(Struct, frozen=True):
    """Seconds of one component and of another, mean of ranks, and how long both were under way on a rank."""

    first: float
    second: float
    both: float


def overlap(spans: Sequence[Span], first: Collection[str], second: str) -> Overlap:
    """Seconds of any of some components and of another: each rank's unions, on its own clock, and what they share."""
    ranks = sorted({span.rank for span in spans})
    rows = []
    for rank in ranks:
        of_rank = [span for span in spans if span.rank == rank]
        left, right = (merged(_intervals(of_rank, components)) for components in (first, [second]))
        rows.append((length(left), length(right), length(shared(left, right))))
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
        for component, seconds in _alone(of_thread):
            totals[rank][component] += seconds
    return {rank: dict(components) for rank, components in sorted(totals.items())}


def _alone(spans: Sequence[Span]) -> Iterable[tuple[str, float]]:
    """Each moment goes to the span that began last of those under way."""
    moments = sorted({moment for span in spans for moment in (span.start, span.end)})
    begun = sorted(spans, key=lambda span: (span.start, -span.end))
    under_way: list[Span] = []
    at = 0
    for start, end in pairwise(moments):
        while at < len(begun) and begun[at].start <= start:
            under_way.append(begun[at])
            at += 1
        under_way = [span for span in under_way if span.end > start]
        if under_way:
            yield under_way[-1].component, end - start


def _intervals(spans: Iterable[Span], components: Collection[str]) -> list[Interval]:
    return [(span.start, span.end) for span in spans if span.component in components]
