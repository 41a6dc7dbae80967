"""Limits: what a contract asks of results, from a TOML file.

    version = "2026-1"
    trials = 5
    [cdb.prefetch."8x4"]
    delivered_bandwidth = { at_least = "10.8 GB/s" }

A table is a workload, a reader, and nodes x ranks of a node; `*` stands for every reader or every scale. The keys are
explained in docs/reference/limits.md.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dlio_bench import documents
from dlio_bench.counters import BYTES, SECONDS, Quantity
from dlio_bench.errors import EnvironmentFailure, UsageError, did_you_mean, one_of, remedy
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS
from dlio_bench.reports.document.marks import MARKS, TINY
from dlio_bench.reports.numbers.intervals import MIN_TRIALS
from dlio_bench.reports.numbers.metrics import METRICS, RATE, RATIO, SHARE, TRIALS
from dlio_bench.units import NUMBER, parse_bytes, parse_rate, parse_seconds, parse_share
from dlio_bench.wrapping import printable

ANY = "*"
SPREAD, CEILING_SHARE = "spread", "ceiling_share"
DERIVED = {
    quantity.name: quantity
    for quantity in (
        Quantity(
            SPREAD, SHARE, "spread",
            "largest distance of a trial's elapsed time from their median, share of the median", TRIALS,
        ),
        Quantity(
            CEILING_SHARE, SHARE, "of the ceiling",
            "pfs_bandwidth, share of what `dlio-bench storage` measured", TRIALS, optional=True,
        ),
    )
}  # fmt: skip
JUDGED: dict[str, Quantity] = METRICS | DERIVED | CHECKPOINT_METRICS  # whatever may have a limit
STATISTICS = ("median", "ci_low", "ci_high")
CACHES = ("cold", "cold-epochs", "first-epoch-cold", "warm", "as-is")
FIX = "Name a TOML file of limits (`dlio-bench help limits`)"
_SCALE = re.compile(r"\*|[1-9][0-9]{0,6}x[1-9][0-9]{0,6}")
_COUNT = re.compile(rf"\s*({NUMBER})\s*(\S*)\s*")
_LONGEST = 200  # characters of a name

Side: TypeAlias = Literal["at_least", "at_most"]
Statistic: TypeAlias = Literal["median", "ci_low", "ci_high"]
UNBOUNDED = (SPREAD, CEILING_SHARE, "compute_overrun")  # shares that may be above 100 %
SIDES: tuple[Side, ...] = ("at_least", "at_most")
UNFAVOURABLE: dict[Side, Statistic] = {"at_least": "ci_low", "at_most": "ci_high"}


class Limit(Struct, frozen=True, kw_only=True):
    """One limit. bound: in `unit`, a share as 0.1; text: as it was written, '10 %'.

    statistic: what is compared: the median, or an end of its interval.
    """

    workload: str
    reader: str
    scale: str
    metric: str
    unit: str
    side: Side
    bound: float
    text: str
    statistic: Statistic

    @property
    def table(self) -> str:
        """Where it stands in the file: `cdb.prefetch.8x4`."""
        return f"{self.workload}.{self.reader}.{self.scale}"

    def covers(self, workload: str, readers: Collection[str], scale: str) -> bool:
        """Whether it holds for a result. readers: the names that the result's reader goes by."""
        return self.workload == workload and self.reader in (ANY, *readers) and self.scale in (ANY, scale)


class Settings(Struct, frozen=True, kw_only=True):
    """What the limits ask of every result. A result that lacks it is INVALID.

    trials, min_seconds, min_steps: the least of a result, of each trial; cache: as it must have been before each trial;
    dataset_to_memory: least size of the dataset over the memory of all hosts, unless the cache was seen to be cold;
    node_bandwidth: bytes a second that a node can receive at most; allow_marks: marks that do not cap the class.
    """

    trials: int = MIN_TRIALS
    min_seconds: float = 0.0
    min_steps: int = 1
    cache: str | None = None
    dataset_to_memory: float | None = None
    node_bandwidth: float | None = None
    allow_marks: list[str] = []


class Limits(Struct, frozen=True, kw_only=True):
    """A file of limits. name: of the file, without its folder."""

    name: str
    sha256: str
    version: str = ""
    settings: Settings = Settings()
    limits: list[Limit]


def load(path: Path, workloads: Collection[str] = (), readers: Collection[str] = ()) -> Limits:
    """The limits of a file. UsageError that names file, key, value and fix; EnvironmentFailure if it cannot be read.

    workloads, readers: the names that are known; without them, any name is taken.
    """
    try:
        content = documents.read_document(path, f"{FIX}.")
    except FileNotFoundError:
        raise UsageError(f"'{path}' does not exist. {FIX}.") from None
    except ValueError:  # a name that no file can have
        raise UsageError(f"{str(path)!r} is no name of a file. {FIX}.") from None
    except OSError as error:
        raise EnvironmentFailure(f"'{path}' could not be read: {error.strerror}. {remedy(error)}.") from error
    return parse(content, path, workloads, readers)


def parse(content: bytes, path: Path, workloads: Collection[str] = (), readers: Collection[str] = ()) -> Limits:
    """The limits of a file's content, as `load`; `path` is for the errors, and its last part the name. UsageError."""
    try:
        document = documents.load_toml(content)
    except ValueError as error:
        raise UsageError(f"'{path}' is not TOML: {_format_value(str(error), '')}. {FIX}.") from None
    sha256 = hashlib.sha256(content).hexdigest()
    return _Parser(str(path), workloads, readers).limits(document, printable(path.name), sha256)


class _Parser:
    """Reads a document; knows its file and the known names for the errors."""

    def __init__(self, where: str, workloads: Collection[str], readers: Collection[str]) -> None:
        self.where, self.workloads, self.readers = where, workloads, readers

    def limits(self, document: Mapping[str, Any], name: str, sha256: str) -> Limits:
        for key in (*Settings.__struct_fields__, "version"):
            if isinstance(document.get(key), dict):
                raise self.fault(key, f"the table [{key}]", f"Write {key} = ... before the first table")
        tables = {key: value for key, value in document.items() if isinstance(value, dict)}
        settings = {key: value for key, value in document.items() if key not in tables}
        version = settings.pop("version", "")
        if isinstance(version, bool) or not isinstance(version, str | int) or not _is_plain(str(version)):
            raise self.fault("version", version, 'Write a text in quotes or a whole number, such as version = "2026-1"')
        common, limits = self.settings(settings), list(self.tables(tables))
        if not limits:
            raise UsageError(
                f"'{self.where}' has no limit. Write one, such as "
                '[cdb.prefetch."8x4"] delivered_bandwidth = { at_least = "10.8 GB/s" }.'
            )
        return Limits(name=name, sha256=sha256, version=str(version), settings=common, limits=limits)

    def settings(self, found: Mapping[str, Any]) -> Settings:
        known = [*Settings.__struct_fields__, "version"]
        for key in found:
            if key not in known:
                raise self.unknown("key", key, known)
        values = dict(found)
        whole = f"Write a whole number of at least {MIN_TRIALS}: with fewer trials there is no interval to judge"
        whole_from_one = "Write a whole number from 1 on"
        self.require(found, "trials", lambda value: _is_whole(value) and value >= MIN_TRIALS, whole)
        self.require(found, "min_seconds", lambda value: _is_number(value) and value >= 0, "Write seconds, such as 30")
        self.require(found, "min_steps", lambda value: _is_whole(value) and value >= 1, whole_from_one)
        ratio = "Write how many times the memory of all hosts the dataset has, such as 5"
        self.require(found, "dataset_to_memory", lambda value: _is_number(value) and value > 0, ratio)
        self.require(found, "cache", lambda value: value in CACHES, f"Write {one_of(CACHES)}")
        if "node_bandwidth" in found:
            values["node_bandwidth"] = self.amount("node_bandwidth", found["node_bandwidth"], RATE)
        marks = found.get("allow_marks", [])
        self.require(found, "allow_marks", lambda value: isinstance(value, list), 'Write a list: ["VIRTUAL NODES"]')
        for mark in marks:
            if not isinstance(mark, str) or mark not in MARKS:
                raise self.unknown("mark in allow_marks:", mark, [name for name in MARKS if name != TINY])
            if mark == TINY:
                raise self.fault("a mark in allow_marks", mark, "Take it out: shrunken samples can accept no system")
        for key, kind in {"min_seconds": float, "dataset_to_memory": float, "trials": int, "min_steps": int}.items():
            if key in found:
                values[key] = kind(found[key])
        return Settings(**values)

    def tables(self, document: Mapping[str, Any]) -> Iterator[Limit]:
        for workload, readers in document.items():
            if self.workloads and workload not in self.workloads:
                raise self.unknown("workload", workload, self.workloads)
            self.require_plain(workload)
            for reader, scales in self.entries(workload, readers, "a reader, or *"):
                row = reader.partition("+")[0]  # of rows mixed by hand, such as naive+order=global-shuffle
                if self.readers and reader not in (ANY, *self.readers) and row not in self.readers:
                    raise self.unknown(f"reader in [{workload}]:", reader, [*self.readers, ANY])
                self.require_plain(reader)
                for scale, metrics in self.entries(f"{workload}.{reader}", scales, '"NODESxRANKS", or "*"'):
                    table = f'{workload}.{reader}."{scale}"'
                    if not _SCALE.fullmatch(scale):
                        raise self.fault(
                            f"a scale in [{workload}.{reader}]",
                            scale,
                            'Write nodes x ranks of a node, such as "8x4", or "*"',
                        )
                    for metric, sides in self.entries(table, metrics, "a metric"):
                        yield from self.metric(workload, reader, scale, metric, sides)

    def metric(self, workload: str, reader: str, scale: str, metric: str, sides: Any) -> Iterator[Limit]:
        table = f'[{workload}.{reader}."{scale}"]'
        if metric not in JUDGED:
            raise self.unknown(f"metric in {table}:", metric, JUDGED, "one that `dlio-bench help metrics` lists")
        place, known = f"{table} {metric}", (*SIDES, "statistic")
        if not isinstance(sides, dict) or not set(SIDES) & set(sides):
            raise self.fault(place, sides, 'Write { at_least = ... } or { at_most = ... }, such as { at_most = "5 %" }')
        for key in sides:
            if key not in known:
                raise self.unknown(f"key in {place}:", key, known)
        statistic = sides.get("statistic")
        if "statistic" in sides and statistic not in STATISTICS:
            raise self.unknown(f"statistic in {place}:", statistic, STATISTICS)
        if metric == SPREAD and statistic not in (None, "median"):
            raise self.fault(f"{place}.statistic", statistic, "Leave it out: the spread has no interval")
        unit = JUDGED[metric].unit
        for side in SIDES:
            if side in sides:
                bound = self.amount(f"{place}.{side}", sides[side], unit)
                if side == "at_least" and unit == SHARE and bound > 1 and metric not in UNBOUNDED:
                    raise self.fault(f"{place}.{side}", sides[side], "Write at most 100 %, as no result has more of it")
                yield Limit(
                    workload=workload,
                    reader=reader,
                    scale=scale,
                    metric=metric,
                    unit=unit,
                    side=side,
                    bound=bound,
                    text=" ".join(str(sides[side]).split()),
                    statistic="median" if metric == SPREAD else statistic or UNFAVOURABLE[side],
                )

    def amount(self, place: str, value: Any, unit: str) -> float:
        """A value with its unit, as a number of that unit."""
        if _is_number(value) and value >= 0 and unit not in (RATE, BYTES, SECONDS, SHARE):
            return float(value)
        if not isinstance(value, str):
            raise self.fault(place, value, f"Write {EXAMPLES.get(unit, f'a number of {unit}')}")
        try:
            return _parse_value(value, unit)
        except UsageError:
            raise self.fault(place, value, f"Write {EXAMPLES.get(unit, f'a number of {unit}')}") from None

    def entries(self, table: str, value: Any, what: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, dict) or not value:
            raise self.fault(f"[{table}]", value, f"Below it comes {what}")
        yield from value.items()

    def require(self, found: Mapping[str, Any], key: str, holds: Any, fix: str) -> None:
        if key in found and not holds(found[key]):
            raise self.fault(key, found[key], fix)

    def require_plain(self, name: str) -> None:
        if not _is_plain(name) or not name:
            raise self.fault("a table", name, "Write the name of a workload or of a reader")

    def fault(self, place: str, value: Any, fix: str) -> UsageError:
        return UsageError(f"'{self.where}': {place} is {_format_value(value)}. {fix}.")

    def unknown(self, what: str, name: Any, known: Collection[str], use: str | None = None) -> UsageError:
        guess = did_you_mean(name, known) if isinstance(name, str) else ""
        return UsageError(
            f"'{self.where}': there is no {what} {_format_value(name)}.{guess} Use {use or one_of([*known])}."
        )  # fmt: skip


EXAMPLES = {
    RATE: 'bytes a second with their unit, such as "10.8 GB/s"',
    BYTES: 'bytes with their unit, such as "500 GB"',
    SECONDS: 'a time with its unit, such as "30 s"',
    SHARE: 'a percentage, such as "10 %"',
    RATIO: "a number, such as 1.2",
    "samples/s": 'a number, such as 200 or "200 samples/s"',
}


def _parse_value(text: str, unit: str) -> float:
    """'10.8 GB/s' of a unit as a number of it. UsageError."""
    if unit == RATE and not text.rstrip().endswith("/s"):
        raise UsageError(f"'{text}' is no rate.")
    parsers = {RATE: parse_rate, BYTES: parse_bytes, SECONDS: parse_seconds, SHARE: parse_share}
    if unit in parsers:
        return float(parsers[unit](text))
    match = _COUNT.fullmatch(text)
    if match is None or match[2] not in ("", unit) or not math.isfinite(float(match[1])):
        raise UsageError(f"'{text}' is no number of {unit}.")
    return float(match[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, also one written as 1e3."""
    return _is_number(value) and value == int(value)


def _is_plain(name: str) -> bool:
    """Whether a name can be printed as it is."""
    return name.isprintable() and len(name) <= _LONGEST


def _format_value(value: Any, quote: str = "'") -> str:
    """A value of the file in a message: short, and without control characters."""
    text = value if isinstance(value, str) else str(value)
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:80])
    return f"{quote}{text}{quote}"
