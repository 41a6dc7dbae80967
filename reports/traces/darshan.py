"""The pattern of accesses in a Darshan log, from the counters of its modules POSIX and STDIO. Pure functions.

Counters: `darshan-util/doc/darshan-util.rst` of github.com/darshan-hpc/darshan. MPI-IO and HDF5 call POSIX, so that
their accesses are among these. What fread and the like ask the kernel for is STDIO's alone: no access counts twice.
"""

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from dlio_bench.reports.traces.access_pattern import Direction, Pattern, variation
from dlio_bench.reports.view.formatting import plural

SHARED = -1  # the rank of a record that Darshan has summed over all ranks
SIZES = (
    "0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS",
)  # fmt: skip
_BOTH = (
    "OPENS", "SEEKS", "READS", "BYTES_READ", "WRITES", "BYTES_WRITTEN", "F_READ_TIME", "F_WRITE_TIME", "F_META_TIME",
    "F_VARIANCE_RANK_BYTES", "F_VARIANCE_RANK_TIME",
)  # fmt: skip
_POSIX_ALONE = (
    "STATS", "CONSEC_READS", "SEQ_READS", "CONSEC_WRITES", "SEQ_WRITES",
    *(f"SIZE_{direction}_{size}" for direction in ("READ", "WRITE") for size in SIZES),
)  # fmt: skip
NAMES = {"POSIX": (*_BOTH, *_POSIX_ALONE), "STDIO": _BOTH}
"""The counters that are needed of each module, without its name before them; those of seconds and variances: F_..."""

Columns: TypeAlias = dict[str, npt.NDArray[np.float64]]  # float64 holds whole numbers to 2^53: 9 PB in one file


class Records(Struct, frozen=True):
    """The records of a module: rank, file (a number of 64 bits) and counters[name] have one entry for each."""

    rank: list[int]
    file: list[int]
    counters: dict[str, list[float]]


class Log(Struct, frozen=True):
    """What is taken from a log. partial: modules that had no memory for some records."""

    ranks: Annotated[int, Meta(ge=1)]
    modules: dict[str, Records]
    partial: list[str]


def pattern(log: Log) -> Pattern:
    """The pattern of all ranks. What Darshan did not watch, a counter of -1, counts as nothing."""
    tables = {name: _columns(log, name) for name in NAMES}
    present = [log.modules[module] for module in NAMES if module in log.modules]
    ranks = np.array([rank for records in present for rank in records.rank], dtype=np.int64)
    both = {name: np.concatenate([tables[module][name] for module in NAMES]) for name in _BOTH}
    stdio = tables["STDIO"]
    moved = both["BYTES_READ"] + both["BYTES_WRITTEN"]
    spent = both["F_READ_TIME"] + both["F_WRITE_TIME"] + both["F_META_TIME"]
    return Pattern(
        ranks=log.ranks,
        files=len({file for records in present for file in records.file}),
        reads=_direction(both, tables["POSIX"], "READ", "BYTES_READ"),
        writes=_direction(both, tables["POSIX"], "WRITE", "BYTES_WRITTEN"),
        opens=int(both["OPENS"].sum()),
        metadata=int(both["OPENS"].sum() + both["SEEKS"].sum() + tables["POSIX"]["STATS"].sum()),
        metadata_seconds=float(both["F_META_TIME"].sum()),
        bytes_variation=_variation(log.ranks, ranks, moved, both["F_VARIANCE_RANK_BYTES"]),
        seconds_variation=_variation(log.ranks, ranks, spent, both["F_VARIANCE_RANK_TIME"]),
        notes=tuple(_notes(log, int(stdio["READS"].sum()), int(stdio["WRITES"].sum()))),
    )


def _columns(log: Log, module: str) -> Columns:
    """The counters of a module, of no records where the log does not have it."""
    counters = log.modules[module].counters if module in log.modules else {name: [] for name in NAMES[module]}
    return {name: np.maximum(0.0, np.array(counters[name], dtype=np.float64)) for name in NAMES[module]}


def _direction(both: Columns, posix: Columns, name: str, total: str) -> Direction:
    return Direction(
        count=int(both[f"{name}S"].sum()),
        bytes=int(both[total].sum()),
        seconds=float(both[f"F_{name}_TIME"].sum()),
        sizes=tuple(int(posix[f"SIZE_{name}_{size}"].sum()) for size in SIZES),
        placed=int(posix[f"{name}S"].sum()),
        consecutive=int(posix[f"CONSEC_{name}S"].sum()),
        sequential=int(posix[f"SEQ_{name}S"].sum()),
        first=None,
    )


def _variation(
    ranks: int, rank: npt.NDArray[np.int64], amount: npt.NDArray[np.float64], variance: npt.NDArray[np.float64]
) -> float | None:
    """Over ranks, where each has records of its own, or where one record of all ranks has all there is.

    Variances of several files do not add up; and a variance of 0 may be one that an old Darshan did not compute.
    """
    has = amount > 0
    rank, amount, variance = rank[has], amount[has], variance[has]
    if len(rank) == 1 and rank[0] == SHARED and variance[0] > 0:
        return float(np.sqrt(variance[0]) / (amount[0] / ranks))
    if not len(rank) or rank.min() < 0 or rank.max() >= ranks:
        return None
    return variation(rank, amount, ranks)


def _notes(log: Log, stdio_reads: int, stdio_writes: int) -> Iterable[str]:
    if log.partial:
        yield f"Darshan had no memory for some files: they are missing here (modules {', '.join(log.partial)})."
    if not log.modules:
        yield "The log has no records of Darshan's modules POSIX and STDIO."
    if stdio_reads or stdio_writes:
        yield (
            f"Sizes and order are not known of {plural(stdio_reads, 'read')} and {plural(stdio_writes, 'write')} by "
            "fread, fwrite and the like (Darshan's module STDIO)."
        )
    if log.modules:
        yield "Darshan counts no closes: the calls on metadata are opens, seeks and stats."
