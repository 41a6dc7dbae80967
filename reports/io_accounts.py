"""What reading took in a trial, by several accountings, and at which bandwidth: pure functions of its spans.

Two accountings are the study's (`accounting`): HEPCNNB's additive one and CDB's merged intervals. The third is ours and
needs the trainers' spans alone: how long they waited for data.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from dlio_bench.components import COMPONENTS
from dlio_bench.reports import accounting
from dlio_bench.reports.accounting import ITERATION, READ_FILE, READ_IMAGE
from dlio_bench.reports.interval_lists import Interval, length, merged
from dlio_bench.reports.span_pattern import NODE_READS, UNPLACED
from dlio_bench.reports.spans import Span

NEXT_BATCH = "Call to Next Batch"
ADDITIVE, MERGED, WAITING = "additive", "merged", "waiting"
TITLES = {
    ADDITIVE: "HEPCNNB's accounting: seconds that follow each other on a node, mean of nodes",
    MERGED: "CDB's accounting: seconds in which any rank reads, or trains (merged intervals)",
    WAITING: "Waiting: seconds of the steps that a trainer waited for data, mean of ranks",
}
READING = {"hepcnnb": READ_FILE, "cdb": READ_IMAGE}  # as the study calls it
# What reads the dataset's files, and not a copy or a tier of the node, where the study has no name for it.
READ_COMPONENTS = {part.name for part in COMPONENTS if part.kind == "read"} - set(NODE_READS)
ALIKE = 64  # bytes by which a sample of the published size may differ: the study counts 32 of an image's statistics


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
        sums: dict[str, float] = {}
        for parts in self.epochs.values():
            for name, seconds in parts.items():
                sums[name] = sums.get(name, 0.0) + seconds
        return sums

    @property
    def share(self) -> float | None:
        """The share of I/O in all epochs; None if they took no time."""
        return io_share(self.totals)

    @property
    def shares(self) -> dict[int, float | None]:
        """The share of I/O in each epoch."""
        return {epoch: io_share(parts) for epoch, parts in self.epochs.items()}


def io_share(parts: Mapping[str, float]) -> float | None:
    """The first part over the sum of all."""
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

    A validation pass counts as training where it is a part of the step before it (`published_spans.with_passes`).
    """
    if readers == [READ_FILE]:
        rows = accounting.additive(spans, nodes, epochs=None)
        parts = ("read", "load", "training", "checkpoint")
        return [Account(ADDITIVE, {at: {name: getattr(row, name) for name in parts} for at, row in rows.items()})]
    if readers:
        read, training = accounting.merged_latency(spans, *readers), accounting.merged_latency(spans, ITERATION)
        epochs = sorted({*read, *training})
        both = {epoch: {"read": read.get(epoch, 0.0), "training": training.get(epoch, 0.0)} for epoch in epochs}
        return [Account(MERGED, both, accounting.counted_twice(spans, readers, [ITERATION]))]
    return []


def waiting(spans: Sequence[Span]) -> Account:
    """Seconds of steps in which a trainer waited for its batch, and the rest of its steps, mean of ranks.

    spans: of the trainers' steps, without validation passes.
    """
    ranks = len({span.rank for span in spans if span.component == ITERATION})
    waited: dict[int, float] = {}
    steps: dict[int, float] = {}
    for span in spans:
        if span.component in (NEXT_BATCH, ITERATION):
            sums = waited if span.component == NEXT_BATCH else steps
            sums[span.epoch] = sums.get(span.epoch, 0.0) + span.seconds / ranks
    return Account(
        WAITING,
        {
            epoch: {"waiting": waited.get(epoch, 0.0), "rest": seconds - waited.get(epoch, 0.0)}
            for epoch, seconds in sorted(steps.items())
        },
    )


class Sizes(Struct, frozen=True):
    """What the study's formulas take of a dataset: files of training and of validation, their mean bytes in storage,
    and the mean bytes of a delivered sample. tiny: its samples are shrunk.
    """

    train_files: int
    train_bytes: float
    validation_bytes: float | None
    sample_bytes: float
    tiny: bool


class Bandwidth(Struct, frozen=True):
    """Bytes a second that a trial read, in several ways. None: not known, or the formula does not hold.

    calls: spans of reading. read_bytes: requested of the file system, as the readers counted. node_seconds: seconds of
    reading threads, mean of nodes; merged_seconds: in which any rank reads, in whatever epoch. formula: as published,
    with the published sizes; rule: the same rule with the sizes of this dataset's files.
    """

    calls: int | None
    read_bytes: int
    node_seconds: float | None
    merged_seconds: float | None
    formula: float | None
    rule: float | None

    @property
    def by_node_seconds(self) -> float | None:
        """The true bandwidth of all nodes: bytes over the mean node's seconds of reading."""
        return self.read_bytes / self.node_seconds if self.node_seconds else None

    @property
    def by_merged_seconds(self) -> float | None:
        """The true bandwidth of the job: bytes over the seconds in which any rank reads."""
        return self.read_bytes / self.merged_seconds if self.merged_seconds else None


def bandwidth(
    spans: Sequence[Span], nodes: int, readers: Sequence[str], read_bytes: int, counted: float, sizes: Sizes
) -> Bandwidth:
    """Bandwidths of a trial. counted: seconds of reading as the readers counted them, which are taken without spans."""
    if not readers:
        return Bandwidth(None, read_bytes, counted / nodes if counted else None, None, None, None)
    chosen = [span for span in spans if span.component in readers]
    any_rank = sum(accounting.merged_latency(spans, *readers).values())  # the study's: epochs may overlap
    formula = rule = None
    if readers == [READ_FILE]:
        read = accounting.summed(accounting.additive(spans, nodes, epochs=None).values()).read
        if sizes.train_files == accounting.HEP_TRAIN_FILES and not sizes.tiny:
            formula = accounting.hep_bandwidth(len(chosen), read)
        if sizes.validation_bytes is not None and len(chosen) >= sizes.train_files and read:
            others = (len(chosen) - sizes.train_files) * sizes.validation_bytes
            rule = (sizes.train_files * sizes.train_bytes + others) / read
    if readers == [READ_IMAGE]:
        if abs(sizes.sample_bytes - accounting.CDB_IMAGE_BYTES) < ALIKE:
            formula = accounting.cdb_bandwidth(len(chosen), any_rank)
        rule = len(chosen) * sizes.sample_bytes / any_rank if any_rank else None
    return Bandwidth(
        calls=len(chosen),
        read_bytes=read_bytes,
        node_seconds=sum(_thread_seconds(chosen)) / nodes,
        merged_seconds=length(merged((span.start, span.end) for span in chosen)),
        formula=formula,
        rule=rule,
    )


def _thread_seconds(spans: Sequence[Span]) -> list[float]:
    """Seconds of each thread in these spans; those inside each other count once."""
    threads: dict[tuple[int, int, str], list[Interval]] = {}
    for span in spans:
        threads.setdefault((span.rank, span.process, span.thread), []).append((span.start, span.end))
    return [length(merged(intervals)) for intervals in threads.values()]


def times_ideal_seconds(seconds: Sequence[float | None], nodes: Sequence[int]) -> list[float | None]:
    """Seconds over what they would be if the first ones were divided among all nodes, as the study's ideal line.

    Source: `plot_scaling_hep_data_results.py`: ideal[i] = ideal[i - 1] / (nodes[i] / nodes[i - 1]), ideal[0] as
    measured. 1: scales ideally; 2: takes twice as long as that.
    """
    return [
        value * of / (seconds[0] * nodes[0]) if value is not None and seconds[0] else None
        for value, of in zip(seconds, nodes, strict=True)
    ]


def times_ideal_bandwidth(rates: Sequence[float | None], nodes: Sequence[int]) -> list[float | None]:
    """Bandwidth over what it would be if each node added as much as one of the first; 1: scales ideally."""
    return [
        rate * nodes[0] / (rates[0] * of) if rate is not None and rates[0] else None
        for rate, of in zip(rates, nodes, strict=True)
    ]
