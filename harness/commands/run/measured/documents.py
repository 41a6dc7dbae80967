"""The files in which ranks leave what they measured for the command: `JobMeasured` and `ReaderMeasured`."""

from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from dlio_bench.atomic_files import write_whole
from dlio_bench.counters import EpochCost, PassCost
from dlio_bench.harness.cluster.job import path_of
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.ground.launching import brought_back
from dlio_bench.harness.storage.cache import CpuShares, Residency
from dlio_bench.reports.document.environment import Host
from dlio_bench.reports.document.trials import Inference, RankLoad, Reduced
from dlio_bench.reports.document.types import Network, Passes

T = TypeVar("T", bound=Struct)


class JobMeasured(Struct, frozen=True):
    """Of the whole job: hosts by name, the host of each rank, the most memory of an idle rank in bytes, and the least
    cores of a rank and the fewest that one is bound to (see Environment).

    job: with the sizes and folders that its nodes decided. interfaces: where each host served samples, 'eth0 10.0.0.1';
    empty if no reader did.
    """

    hosts: dict[str, Host]
    rank_hosts: list[str]
    mpi: str | None
    rank_memory_bytes: int
    job: Job
    interfaces: dict[str, str] = {}
    cores_per_rank: float | None = None
    bound_processors: int | None = None


class RankTrial(Struct, frozen=True, kw_only=True):
    """A trial on one rank.

    enclosing_seconds: the rank's interval around both barriers, for each segment of the trial. epochs: the counters of
    each, its validation pass included. scores: of each pass, over all ranks. host_cpu: on the first rank of a host.
    residency: of this rank's share of the files, for each segment. clock_drift: wall clock less monotonic clock,
    seconds. batches: that the rank took, if ranks get them as they ask for them.
    """

    trial: int
    seed: int
    enclosing_seconds: list[float]
    epochs: list[EpochCost]
    passes: dict[int, PassCost]
    scores: list[dict[str, float]]
    training: Reduced | None
    inference: Inference | None
    load: RankLoad | None = None
    compute_seconds: float
    cpu_seconds: float
    host_cpu: CpuShares | None
    residency: list[Residency]
    clock_drift: float
    batches: int | None = None


class Verified(Struct, frozen=True):
    """Counts over all ranks. epochs_once: epochs in which every planned sample came exactly once.

    passes_once: validation passes of this kind. epochs_alike: epochs with the same sequence on every rank.
    """

    fields: int
    damaged_fields: int
    damaged: list[str]
    deliveries: int
    altered_deliveries: int
    epochs: int
    epochs_once: int
    passes: int
    passes_once: int
    epochs_alike: int


class ReaderMeasured(Struct, frozen=True, kw_only=True):
    """One reader and its trials, ranks[rank][trial]. trained: the network of each model; None where none is at work.

    damage: why the data could not be verified; None where they were, or where verification did not come to this reader.
    """

    options: dict[str, int]
    decode: str | None
    order: str
    steps_per_epoch: int
    different_samples: int
    validation: Passes | None
    trained: list[Network | None]
    verified: Verified | None
    ranks: list[list[RankTrial]]
    damage: str | None = None


def save(measured: Struct, path: Path) -> None:
    """Write a document, whole or not at all."""
    write_whole(path, msgspec.json.encode(measured, enc_hook=_plain))


def _plain(value: object) -> int | float | str:
    """NumPy's numbers as Python's, and paths as texts."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be saved in what ranks measured")


def load(path: Path, kind: type[T]) -> T:
    """What the ranks left in a file. EnvironmentFailure if it is not there."""
    return msgspec.json.decode(brought_back(path, "choose one with --out"), type=kind, dec_hook=path_of)
