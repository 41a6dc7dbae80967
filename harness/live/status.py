"""`status.jsonl`: what a run is doing, a JSON object in each line, appended while it is at work.

This file imports nothing slow, so that a notebook may read it as the command `watch` does.
"""

import json
import math
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dlio_bench.errors import UsageError

NAME = "status.jsonl"
SCHEMA = 1
PREPARING, WARM_UP, TIMED, VALIDATION = "preparing", "warm-up", "timed", "validation"
VERIFYING, DONE, FAILED = "verifying", "done", "failed"
PHASES = (PREPARING, WARM_UP, TIMED, VALIDATION, VERIFYING, DONE, FAILED)
ENDED = (DONE, FAILED)
SOURCES = ("pfs", "ram", "local", "remote")  # bytes come from the file system, tiers of the node, other ranks
MOST_TIME = 1e11  # seconds since 1970 that a clock may show
MOST_LINE = 1 << 16  # bytes of a line; a longer one is foreign


class ReadLines(Struct, frozen=True):
    """Whole lines of the file: their records, the offset behind them, and how many others are not empty."""

    records: list[dict[str, Any]] = field(default_factory=list)
    offset: int = 0
    damaged: int = 0


def record(phase: str, **known: Any) -> dict[str, Any]:
    """A record of this moment. known: values of FIELDS; what is not known is None.

    ValueError if `read_status` would pass it over.
    """
    made = {"schema": SCHEMA, "time": time.time(), **dict.fromkeys(_OPTIONAL), "phase": phase, **known}
    if (wrong := _invalid_field(made)) or made.keys() != FIELDS.keys():
        raise ValueError(f"no status: {wrong or sorted(made.keys() ^ FIELDS.keys())}")
    return made


def append(folder: Path, made: Mapping[str, Any]) -> None:
    """Write a record behind the others, in one piece. OSError if that is impossible.

    Several processes of one host may do so. A line that a writer could not finish ends first, so that it spoils no
    other.
    """
    line = json.dumps(made, allow_nan=False).encode() + b"\n"
    file = os.open(folder / NAME, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        size = os.fstat(file).st_size
        cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, b"\n" * cut + line)
    finally:
        os.close(file)


def read_status(folder: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The records of a run's folder from an offset in bytes on, and the offset to go on from.

    See FIELDS for what a record has. FileNotFoundError while there is no status, UsageError as `open_status`.
    """
    read = read_from(folder, offset)
    return read.records, read.offset


def read_from(folder: Path, offset: int = 0) -> ReadLines:
    """As read_status, with the count of lines that are no record. A last line without its end is left for later.

    A file that is shorter than the offset is another one: it is read from its beginning.
    """
    file = open_status(folder)
    try:
        return read_open(file, offset)
    finally:
        os.close(file)


def open_status(folder: Path) -> int:
    """Open the file; its descriptor. OSError; UsageError for what no run writes, as a FIFO, which could block."""
    file = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UsageError(f"{folder / NAME} is not a regular file, so no run has written it. Name the --out of a run.")
    return file


def read_open(file: int, offset: int = 0) -> ReadLines:
    """As read_from, of a file that is open: what a run writes before it removes its folder can still be read."""
    records, damaged = [], 0
    with os.fdopen(os.dup(file), "rb") as lines:
        offset = offset if offset <= os.fstat(file).st_size else 0
        lines.seek(offset)
        while line := lines.readline(MOST_LINE):
            if not line.endswith(b"\n") and len(line) < MOST_LINE:
                break
            offset += len(line)
            parsed = _parse_line(line)
            if parsed is not None:
                records.append(parsed)
            damaged += parsed is None and line != b"\n"  # it ended a line that another writer had not finished
    return ReadLines(records, offset, damaged)


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """The record in a line; None where it is none."""
    with suppress(ValueError, RecursionError):
        values = json.loads(line)
        if isinstance(values, dict) and not _invalid_field(values):
            return {name: values.get(name) for name in FIELDS}
    return None


def _invalid_field(values: Mapping[str, Any]) -> str:
    """The first field that does not have a value it may have; empty if all have."""
    wrong = (name for name, right in FIELDS.items() if not right(values.get(name)))
    return next(wrong, "") or next((name for name, most in _OF.items() if _exceeds(values, name, most)), "")


def _exceeds(values: Mapping[str, Any], name: str, most: str) -> bool:
    number, total = values.get(name), values.get(most)
    return number is not None and total is not None and bool(number > total)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )


def _rate(value: object) -> bool:
    return _number(value) and float(value) >= 0  # type: ignore[arg-type]  # it is a number


def _share(value: object) -> bool:
    return _number(value) and 0 <= float(value) <= 1  # type: ignore[arg-type]  # it is a number


def _text(value: object) -> bool:
    return isinstance(value, str)


def _by_source(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == set(SOURCES) and all(map(_or_none(_count), value.values()))


def _or_none(right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or right(value)


_OPTIONAL: dict[str, Callable[[object], bool]] = {
    "reader": _text,
    "nodes": _count,
    "ranks": _count,
    "rank": _count,  # whose rate, stall, loss and bytes these are
    "result": _count,  # the number of the result at work, of `results`: one for each reader and node count
    "results": _count,
    "trial": _count,  # from 1 on, those that warm up included
    "trials": _count,
    "epoch": _count,  # from 1 on
    "epochs": _count,
    "step": _count,  # steps of this epoch that are over
    "steps": _count,
    "samples_per_second": _rate,
    "stall_share": _share,  # of that rank's time, its waiting for data
    "loss": _number,
    "bytes": _by_source,  # of this trial so far
    "progress": _share,  # of all trials of the run
    "message": _text,
    "exit_status": _count,  # of a run that has ended
}
_OF = {"result": "results", "trial": "trials", "epoch": "epochs", "step": "steps"}  # a number, and the most it may be
# Every field of a record, with what its value may be.
FIELDS: dict[str, Callable[[object], bool]] = {
    "schema": lambda value: value == SCHEMA and value is not True,
    "time": lambda value: _number(value) and 0 <= float(value) < MOST_TIME,  # type: ignore[arg-type]  # a number
    "phase": lambda value: value in PHASES,
    **{name: _or_none(right) for name, right in _OPTIONAL.items()},
}
