"""What a result says of its trials, as types: epochs, validation passes, caches, training and inference."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from dlio_bench.counters import EpochCost, PassCost
from dlio_bench.reports.document.typed import Amount, Count, Share, Some

LEAST_DEVICE = 0.99  # of the bytes that were requested of files: less, and caches have served some of them


class Cached(Struct, frozen=True, kw_only=True):
    """How much of the dataset was in a host's page cache before a trial; not known where it is not attestable."""

    resident_share: Share | None
    attestable: bool
    memory_backed: bool = False
    bytes: Count = 0
    note: str | None = None


class Cache(Struct, frozen=True):
    """The cache as it was asked for, and as each host had it."""

    asked: str
    hosts: dict[str, Cached]


class Pass(PassCost, kw_only=True):
    """A validation pass: its part of the epoch's counters. Its seconds are not among the epoch's."""

    seconds: Amount


class Epoch(EpochCost, kw_only=True):
    """An epoch of a trial over all ranks, with the validation pass behind it."""

    epoch: Count
    seconds: Amount
    validation: Pass | None = None

    def in_training(self, name: str) -> float:
        """A counter without the validation pass."""
        passed = 0 if self.validation is None else getattr(self.validation, name)
        return float(getattr(self, name) - passed)


class Checkpoint(Struct, frozen=True):
    """A checkpoint that was written."""

    step: int
    bytes: Count
    seconds: Amount


class Distance(Struct, frozen=True):
    """How far the values of a quantity are apart in two groups of samples, by the two-sample Kolmogorov-Smirnov test.

    statistic: the largest difference of the two distribution functions. score: -ln p, at most 700.
    """

    statistic: Share
    score: Amount


class Quantity(Struct, frozen=True, kw_only=True):
    """Distances of made samples from held-out ones, before this run's training and behind it; None where either had no
    value of this quantity."""

    name: str
    before: Distance | None
    after: Distance | None


class Generated(Struct, frozen=True, kw_only=True):
    """What a network made, compared with as many held-out samples. combined: quantities whose scores were published as
    a sum. missing: why other quantities are not there. picture: a PNG file in base64, made samples in the upper row."""

    samples: Count
    quantities: list[Quantity]
    combined: list[str] = []
    missing: str | None = None
    picture: str | None = None


class Reduced(Struct, frozen=True, kw_only=True):
    """All-reduces of gradients, which may overlap compute; bytes that one rank had added up. And checkpoints, and what
    a network made that makes samples."""

    allreduce_seconds: Amount
    allreduce_bytes: Count
    checkpoints: list[Checkpoint] = []
    generated: list[Generated] = []


class Training(Reduced, frozen=True, kw_only=True):
    """What a trial's training came to. loss: by step, the mean over the ranks; scores: of each validation pass."""

    loss: Annotated[list[float], Meta(min_length=1)]
    final_loss: float
    scores: list[dict[str, float]] = []


class Inference(Struct, frozen=True):
    """Samples predicted, scores of the predictions by name, and those of samples that no training reads."""

    samples: Count
    scores: dict[str, float]
    held_out: dict[str, float] = {}


class RankLoad(Struct, frozen=True, kw_only=True):
    """Checkpoints that a rank wrote beside a training: of each its seconds, of these in fsync and waiting for bytes
    that were still being made, its bytes, and calls of fsync. compared_bytes: of the last one, by another rank.
    compared_cached: how many of these were in the memory of its host before it read them; None: not known.
    """

    seconds: list[float] = []
    synced: list[float] = []
    waited: list[float] = []
    bytes: list[int] = []
    fsyncs: list[int] = []
    compared_bytes: int = 0
    compared_cached: int | None = 0


class CheckpointLoad(Struct, frozen=True, kw_only=True):
    """Checkpoints of a published size, written beside the training every so many steps.

    bytes: of one, all ranks. seconds: of each, on its slowest rank. fsync_share, waited_share: of the ranks' time to
    write. compared_bytes: of the last one, read by other ranks after the clock, and equal;
    compared_cached: how many of these were in memory before, None where that is not known.
    """

    model: str
    fraction: Annotated[float, Meta(gt=0, le=1)]
    every: Some
    bytes: Count
    seconds: list[Amount]
    fsyncs: Count
    fsync_share: Share
    waited_share: Share
    compared_bytes: Count
    compared_cached: Count | None = None


class Trial(EpochCost, kw_only=True):
    """One trial over all ranks. Its counters are those of its epochs, added up.

    rank_batches: that each rank took, where ranks get them as they ask for them; else empty.
    """

    trial: Count
    warmup: bool
    seed: Count
    elapsed_seconds: Amount
    steps: Some
    samples: Count
    validation_samples: Count = 0
    cache: Cache
    epochs: Annotated[list[Epoch], Meta(min_length=1)]
    compute_asked_seconds: Amount
    compute_actual_seconds: Amount
    compute_late_seconds: float = 0.0
    cpu_seconds: Amount | None
    host_cpu_busy_share: Amount | None
    host_iowait_share: float | None
    cores: Some | None
    clock_drift_seconds: float = 0.0
    reader_threads: int | None
    rank_bytes: list[int] = field(default_factory=list)
    rank_batches: list[Count] = field(default_factory=list)
    training: Training | None = None
    inference: Inference | None = None
    checkpoint_load: CheckpointLoad | None = None


def was_served_from_cache(trials: Sequence[Trial]) -> bool:
    """Whether storage is known to have delivered less than 99 % of the bytes that these trials requested of files."""
    known = [trial for trial in trials if trial.bytes_device is not None]
    requested = sum(trial.bytes_requested for trial in known)
    return sum(trial.bytes_device or 0 for trial in known) < LEAST_DEVICE * requested
