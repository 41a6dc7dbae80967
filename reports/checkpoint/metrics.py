"""The table of the metrics of checkpoints, and their formulas: pure functions from the trials.

Each metric has one value per trial. B: bytes of a checkpoint; t: seconds from a barrier of all ranks until the slowest
of them is done, of a write until the set has its manifest and its name.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from dlio_bench.counters import SECONDS, Quantity
from dlio_bench.reports.document.typed import Amount, Count, Share, Some
from dlio_bench.reports.document.types import Metric
from dlio_bench.reports.numbers.meetings import Floats
from dlio_bench.reports.numbers.metrics import RATE, SHARE, TRIALS
from dlio_bench.reports.numbers.statistics import summary

Seconds = Annotated[float, Meta(gt=0)]
Ranks = Annotated[list[Seconds], Meta(min_length=1)]


class Write(Struct, frozen=True, kw_only=True):
    """A checkpoint that was written. seconds: those of the slowest rank behind the barrier, plus `commit_seconds`.

    commit_seconds: of rank 0, for manifest and name; commit_synced: of these in fsync.
    By rank: seconds until its last fsync; of these waited for bytes, and in fsync. rank_made: seconds of the thread
    that made bytes beside it. fsyncs: calls of all ranks, the commit's among them.
    """

    seconds: Seconds
    commit_seconds: Amount
    commit_synced: Amount
    bytes: Some
    fsyncs: Count
    rank_seconds: Ranks
    rank_waited: list[Amount]
    rank_made: list[Amount]
    rank_synced: list[Amount]


class Read(Struct, frozen=True, kw_only=True):
    """A checkpoint that was read. seconds: behind the barrier."""

    seconds: Seconds
    rank_seconds: Ranks


class Trial(Struct, frozen=True, kw_only=True):
    """All checkpoints written, then read from the oldest on, then compared.

    resident_share: of the files, in the page cache of the host where most was left, before the reads.
    """

    trial: Count
    writes: Annotated[list[Write], Meta(min_length=1)]
    reads: Annotated[list[Read], Meta(min_length=1)]
    compared_bytes: Count
    resident_share: Share
    attestable: bool
    memory_backed: bool
    note: str | None

    @property
    def seconds(self) -> float:
        """Of all timed writes and reads."""
        return sum(write.seconds for write in self.writes) + sum(read.seconds for read in self.reads)


def _rates(kind: str, verb: str) -> tuple[Quantity, ...]:
    return (
        Quantity(
            f"checkpoint_{kind}_seconds", SECONDS, kind, f"time to {verb} a checkpoint, slowest rank behind a barrier",
            TRIALS,
        ),
        Quantity(
            f"checkpoint_{kind}_bandwidth", RATE, f"{kind} rate", f"rate to {verb}: bytes of all checkpoints over "
            "their time, slowest rank behind a barrier", TRIALS,
        ),
        Quantity(
            f"checkpoint_{kind}_mean_rate", RATE, "mean of rates", f"mean of the rates to {verb} each checkpoint, "
            "slowest rank behind a barrier", TRIALS,
        ),
        Quantity(
            f"checkpoint_{kind}_rank0_rate", RATE, "rank 0's", f"mean of the rates to {verb}, by the time of rank 0 "
            f"alone, without slower ranks{', manifest and name' * (kind == 'write')}", TRIALS,
        ),
    )  # fmt: skip


CHECKPOINT_METRICS: dict[str, Quantity] = {
    quantity.name: quantity
    for quantity in (
        *_rates("write", "write"),
        *_rates("read", "read"),
        Quantity(
            "checkpoint_fsync_share", SHARE, "in fsync",
            "time in fsync, share of the ranks' time to write; both with manifest and name", TRIALS
        ),
        Quantity(
            "checkpoint_waited_share", SHARE, "waited for bytes",
            "waiting for bytes that were still being made, share of the ranks' time to write", TRIALS,
        ),
        Quantity("checkpoint_fsyncs", "calls", "fsyncs", "calls of fsync of all ranks for a checkpoint", TRIALS),
    )
}  # fmt: skip

_FORMULAS: dict[str, Callable[[Trial], float]] = {
    "checkpoint_fsync_share": lambda trial: _share(trial, lambda write: sum(write.rank_synced) + write.commit_synced),
    "checkpoint_waited_share": lambda trial: _share(trial, lambda write: sum(write.rank_waited)),
    "checkpoint_fsyncs": lambda trial: sum(write.fsyncs for write in trial.writes) / len(trial.writes),
}


def per_trial(trials: Sequence[Trial], name: str) -> Floats:
    """A metric's value of each trial, float64 [trials].

    seconds: mean of t; bandwidth: sum of B / sum of t; mean_rate: mean of B / t; rank0_rate: mean of B / rank 0's own
    seconds, which argonne-lcf/dlio_benchmark @e1919d7 (utils/statscounter.py:143-166,342-374) reports.
    """
    if name in _FORMULAS:
        return np.array([_FORMULAS[name](trial) for trial in trials], dtype=np.float64)
    kind, _, of = name.removeprefix("checkpoint_").partition("_")
    sizes = np.array([[write.bytes for write in trial.writes] for trial in trials], dtype=np.float64)
    timed = [trial.writes if kind == "write" else trial.reads for trial in trials]
    whole = np.array([[each.seconds for each in row] for row in timed], dtype=np.float64)
    first = np.array([[each.rank_seconds[0] for each in row] for row in timed], dtype=np.float64)
    values: Floats = {
        "seconds": lambda: whole.mean(axis=1),
        "bandwidth": lambda: sizes.sum(axis=1) / whole.sum(axis=1),
        "mean_rate": lambda: (sizes / whole).mean(axis=1),
        "rank0_rate": lambda: (sizes / first).mean(axis=1),
    }[of]()
    return values


def metrics(trials: Sequence[Trial]) -> dict[str, Metric]:
    """Every metric of the table: the median over the trials and its interval, None with fewer than 5."""
    return summary({name: per_trial(trials, name) for name in CHECKPOINT_METRICS}, CHECKPOINT_METRICS)


def _share(trial: Trial, part: Callable[[Write], float]) -> float:
    """Of the ranks' time to write, rank 0's for manifest and name among it."""
    whole = sum(sum(write.rank_seconds) + write.commit_seconds for write in trial.writes)
    return sum(map(part, trial.writes)) / whole
