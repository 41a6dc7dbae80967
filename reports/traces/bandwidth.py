"""At which bandwidth a trial read: bytes over the seconds of several accountings, and by the study's formulas."""

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from dlio_bench.reports.traces import accounting
from dlio_bench.reports.traces.accounting import READ_FILE, READ_IMAGE, length
from dlio_bench.reports.traces.timeline import Span

# Bytes of the study's formulas for bandwidth: a training and a validation file of HEPCNNB, an image of CDB.
HEP_TRAIN_BYTES, HEP_VALID_BYTES, HEP_TRAIN_FILES = 426_897_408 + 2836 * 4, 56_598_528 + 376 * 4, 1024
CDB_IMAGE_BYTES = 17_694_752
HEP_RULE = (
    f"it charges {HEP_TRAIN_FILES:,} calls with {HEP_TRAIN_BYTES:,} bytes, a published training file, and the rest "
    f"with {HEP_VALID_BYTES:,}, a validation file, whatever the log's calls read: too low over several epochs"
)
CDB_RULE = f"which charges each call with {CDB_IMAGE_BYTES:,} bytes, an image of the published size, whatever it reads"
ALIKE = 64  # bytes by which a sample of the published size may differ: the study counts 32 of an image's statistics


def hep_bandwidth(reads: int, read_seconds: float) -> float | None:
    """Bytes a second by the study's formula, from read calls and seconds a node; None without reads.

    It charges 1,024 calls with a training file and all others with a validation file, whatever they read: over several
    epochs it is too low, by 2.7 times at most. It holds for the published dataset of 1,024 training files alone.
    """
    if reads < HEP_TRAIN_FILES or not read_seconds:
        return None
    return (HEP_TRAIN_FILES * HEP_TRAIN_BYTES + (reads - HEP_TRAIN_FILES) * HEP_VALID_BYTES) / read_seconds


def cdb_bandwidth(reads: int, merged_seconds: float) -> float | None:
    """Bytes a second by the study's formula: an image for each call, over the merged seconds of all epochs."""
    return reads * CDB_IMAGE_BYTES / merged_seconds if reads and merged_seconds else None


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
    formula = rule = None
    if readers == [READ_FILE]:
        read = accounting.sum_of_epochs(accounting.additive(spans, nodes, epochs=None).values()).read
        if sizes.train_files == HEP_TRAIN_FILES and not sizes.tiny:
            formula = hep_bandwidth(len(chosen), read)
        if sizes.validation_bytes is not None and len(chosen) >= sizes.train_files and read:
            others = (len(chosen) - sizes.train_files) * sizes.validation_bytes
            rule = (sizes.train_files * sizes.train_bytes + others) / read
    if readers == [READ_IMAGE]:
        any_rank = sum(accounting.merged_latency(spans, *readers).values())  # the study's: epochs may overlap
        if abs(sizes.sample_bytes - CDB_IMAGE_BYTES) < ALIKE:
            formula = cdb_bandwidth(len(chosen), any_rank)
        rule = len(chosen) * sizes.sample_bytes / any_rank if any_rank else None
    return Bandwidth(
        calls=len(chosen),
        read_bytes=read_bytes,
        node_seconds=_thread_seconds(chosen) / nodes,
        merged_seconds=length(accounting.union_of(chosen, readers)),
        formula=formula,
        rule=rule,
    )


def _thread_seconds(spans: Sequence[Span]) -> float:
    """Seconds of all threads in these spans; those inside each other count once."""
    threads: dict[tuple[int, int, str], list[accounting.Interval]] = defaultdict(list)
    for span in spans:
        threads[span.rank, span.process, span.thread].append((span.start, span.end))
    return sum(length(accounting.union(intervals)) for intervals in threads.values())


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
