"""What `dlio-bench storage` found: rates from trials, the ceiling, marks, text. Pure functions over its JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dlio_bench.errors import DataError, UsageError
from dlio_bench.reports.document.environment import Mount
from dlio_bench.reports.document.marks import FEW_TRIALS
from dlio_bench.reports.document.typed import Amount, Share, Some, convert, load_json, require_schema
from dlio_bench.reports.view.formatting import format_share, plural, size
from dlio_bench.reports.view.sections import Head, Note, Part, Section, Table, View
from dlio_bench.units import format_bytes

SCHEMA = "dlio-bench/storage/1"
FIX = "Name a file written by dlio-bench storage --out"
NOT_ATTESTED, NOISY = "CACHE NOT ATTESTED", "NOISY"
MOST_SPREAD = 0.20  # (max - min) / median of the trials: beyond it a row is noisy
FEWEST_TRIALS = 5  # MLPerf Storage asks for five runs
# Samples of about one size have one ceiling. A storage file may measure samples of the workload's default variant, and
# readers read a view of a stored sample (CDB: 17.7 of 60.2 MB): these must still count as one size.
COMPARABLE = 4.0
SPANS = ("median", "min", "max", "spread")  # columns
METADATA_NOTE = (
    "Opens find directory entries in the kernel's cache, which cannot be dropped without root; storage behind a "
    "network may answer the first open of a file more slowly. Creates are slower on ext4 for some "
    "minutes after many files were removed."
)
OBJECTS_NOTE = "A rank looks at one object after the other, so that a rate is the inverse of a request's latency."

Pattern = Literal["sequential", "random", "range"]
Rate = Annotated[float, Meta(gt=0)]  # bytes, or operations, a second


class Attestation(Struct, frozen=True):
    """Whether the caches were as asked for, and what was found."""

    attested: bool
    found: str


class ReadTrial(Struct, frozen=True, kw_only=True):
    """One trial. device_bytes: None where it cannot be known; resident_share: of the files, before the trial, on
    the host where it was furthest from what was asked for.
    """

    bytes: Some
    seconds: Rate
    bytes_per_second: Rate
    device_bytes: int | None
    resident_share: Share
    attestable: bool
    memory_backed: bool
    note: str | None
    retries: Amount = 0


class Best(Struct, frozen=True, kw_only=True):
    """Read rates with this number of ranks on all hosts together, and of threads per rank. request_bytes: of ranges of
    objects at random places; samples and whole files have their own sizes.
    """

    pattern: Pattern
    hosts: Some = 1
    ranks: Some
    threads: Some
    median: Rate
    min: Rate
    max: Rate
    noisy: bool
    request_bytes: Some | None = None


class ReadRow(Best, frozen=True, kw_only=True):
    """The same with its trials. spread: (max - min) / median; device_bytes: median over the trials."""

    spread: Amount
    device_bytes: float | None
    trials: Annotated[list[ReadTrial], Meta(min_length=1)]


class MetadataRow(Struct, frozen=True, kw_only=True):
    """Rates of an operation on files."""

    operation: Literal["open+fstat+close", "create", "unlink", "head"]
    hosts: Some = 1
    ranks: Some
    median: Rate
    min: Rate
    max: Rate
    spread: Amount
    trials: Annotated[list[Rate], Meta(min_length=1)]


class Metadata(Struct, frozen=True):
    """Rates of operations on files."""

    note: str
    rates: list[MetadataRow]


class Document(Struct, frozen=True, kw_only=True):
    """What dlio-bench storage found. Sizes in bytes, means; times in seconds; rates a second. workload: whose file
    sizes the test files have; made: whether the files were made for this; ceiling: the row with the highest median.
    """

    schema: Literal["dlio-bench/storage/1"]
    created: str
    version: str
    folder: str
    mount: Mount | None
    hosts: Annotated[list[str], Meta(min_length=1)]
    workload: str | None
    made: bool
    seed: int
    files: Some
    file_bytes: Some
    samples: Some
    sample_bytes: Some
    cache: Literal["cold", "warm"]
    io: Literal["buffered", "direct"] = "buffered"
    attestation: Attestation
    trials: Some
    marks: list[str]
    reads: Annotated[list[ReadRow], Meta(min_length=1)]
    metadata: Metadata
    ceiling: Best


def complete(draft: Mapping[str, Any]) -> Document:
    """The document of a draft, whose rows have "trials": rates, marks and the ceiling added. All rates a second.

    draft["reads"]: {"pattern", "ranks", "threads", "trials": [{"bytes", "seconds", "device_bytes", ...}]};
    draft["metadata"]: {"operation", "ranks", "trials": [operations a second]}. ValueError when it breaks this contract.
    """
    reads = sorted((_parse_row(row) for row in draft["reads"]), key=lambda row: str(row["pattern"]), reverse=True)
    rates = [{**row, **_summary(row["trials"])} for row in draft["metadata"]]
    best = max(reads, key=lambda row: float(row["median"]))
    marks = []
    if not draft["attestation"]["attested"]:
        marks.append(NOT_ATTESTED)
    if best["noisy"]:
        marks.append(NOISY)
    if draft["trials"] < FEWEST_TRIALS:
        marks.append(FEW_TRIALS)
    document = {
        **draft,
        "marks": marks,
        "reads": reads,
        "metadata": {
            "note": OBJECTS_NOTE if any(row["operation"] == "head" for row in rates) else METADATA_NOTE,
            "rates": rates,
        },
        "ceiling": {key: best[key] for key in Best.__struct_fields__ if key in best},
    }
    return convert(document, Document)


def validate(document: Any, name: str = "the storage document") -> Document:
    """The document, when it follows the schema; `name` is for the message.

    UsageError for a document of another kind, DataError saying where it does not follow.
    """
    require_schema(document, [SCHEMA], name, FIX, UsageError)
    try:
        return convert(document, Document)
    except ValueError as error:
        raise DataError(
            f"'{name}' does not follow {SCHEMA}: {error}. Measure again with dlio-bench storage."
        ) from error


def load(path: Path) -> Document:
    """The document in a file. UsageError when it is no such file, EnvironmentFailure, DataError as `validate`."""
    return validate(load_json(path, FIX, UsageError), str(path))


def ceiling_for(document: Document, sample_bytes: float) -> float | None:
    """Bytes a second: the best cold random rate, for readers that take samples of `sample_bytes` stored, one at a time.

    None where the document does not say: measured warm, the cache not attested, or samples of another size (beyond a
    factor of COMPARABLE either way).
    """
    if document.cache != "cold" or not document.attestation.attested or sample_bytes <= 0:
        return None
    ratio = document.sample_bytes / sample_bytes
    if not 1 / COMPARABLE <= ratio <= COMPARABLE:
        return None
    return max((row.median for row in document.reads if row.pattern == "random"), default=None)


def view(document: Document) -> View:
    """The sections of its text, the ceiling first."""
    mount = document.mount
    made = "made for this" if document.made else "of the dataset"
    files = (
        f"{plural(document.files, 'file')} of {format_bytes(document.file_bytes)} {made}, "
        f"{plural(document.samples, 'sample')} of {format_bytes(document.sample_bytes)}"
    )
    return View(
        head=Head(
            title=f"storage {document.folder}",
            overline=f"storage · version {document.version}",
            heading=f"Storage at {document.folder}",
            subjects=[
                f"{document.folder}{f'  ({mount.type} on {mount.source})' if mount else ''}",
                files,
                f"{document.cache}: {document.attestation.found}",
            ],
            marks=document.marks,
        ),
        answers=[_ceiling(document)],
        sections=[Section("reads", "Reads", _reads(document)), Section("files", "Files", _operations(document))],
        made=f"Measured {document.created}.",
    )


def _ceiling(document: Document) -> str:
    """'ceiling 2 GB/s: random 60 MB, 2 ranks x 2 threads, cold, median of 5'."""
    best = document.ceiling
    reads = f"random {format_bytes(document.sample_bytes)}" if best.pattern == "random" else _pattern(best)
    where = f" on {best.hosts} hosts" if best.hosts > 1 else ""
    return (
        f"ceiling {format_bytes(best.median)}/s: {reads}, {plural(best.ranks, 'rank')}{where} x "
        f"{plural(best.threads, 'thread')}, {document.cache}{', direct' if document.io == 'direct' else ''}, "
        f"median of {document.trials}{' (noisy)' if best.noisy else ''}"
    )


def _reads(document: Document) -> list[Part]:
    names = [*_hosts(document), "ranks", "threads"]
    rows = [
        [
            _pattern(row),
            *(str(getattr(row, name)) for name in names),
            *(f"{format_bytes(rate)}/s" for rate in (row.median, row.min, row.max)),
            format_share(row.spread) + ("*" if row.noisy else ""),
            size(row.device_bytes),
        ]
        for row in document.reads
    ]
    noisy = f"* noisy: fastest and slowest trial more than {format_share(MOST_SPREAD)} of the median apart"
    table = Table(heads=["pattern", *names, *SPANS, "device"], rows=rows)
    return [table, *([Note(text=noisy)] if any(row.noisy for row in document.reads) else [])]


def _operations(document: Document) -> list[Part]:
    names = [*_hosts(document), "ranks"]
    rows = [
        [
            row.operation,
            *(str(getattr(row, name)) for name in names),
            *(f"{rate:.0f}/s" for rate in (row.median, row.min, row.max)),
            format_share(row.spread),
        ]
        for row in document.metadata.rates
    ]
    table = Table(heads=["operation", *names, *SPANS], rows=rows)
    return [*([table] if rows else []), Note(text=document.metadata.note, aside=True)]


def _hosts(document: Document) -> list[str]:
    """The column of hosts, where there are several."""
    return ["hosts"] * any(row.hosts > 1 for row in document.reads)


def _pattern(row: Best) -> str:
    """Of a read: its name; of ranges of objects their size, in powers of two as they are asked for."""
    if row.request_bytes is None:
        return row.pattern
    asked = row.request_bytes
    return f"{asked >> 20} MiB" if asked >= 1 << 20 else f"{asked >> 10} KiB"


def _parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its rates in bytes a second, of each trial too, and the median of what the device delivered."""
    trials = [{**trial, "bytes_per_second": trial["bytes"] / trial["seconds"]} for trial in row["trials"]]
    device = [trial["device_bytes"] for trial in trials]
    summary = _summary([trial["bytes_per_second"] for trial in trials])
    return {
        **row,
        **summary,
        "noisy": summary["spread"] > MOST_SPREAD,
        "device_bytes": None if None in device else median(device),
        "trials": trials,
    }


def _summary(rates: Sequence[float]) -> dict[str, float]:
    """Median, extremes and (max - min) / median of the trials."""
    centre = median(rates)
    return {"median": centre, "min": min(rates), "max": max(rates), "spread": (max(rates) - min(rates)) / centre}
