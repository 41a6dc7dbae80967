"""The files in which ranks leave what they measured: `JobMeasured`, and of each reader `ReaderMeasured` and its steps.

Rank 0 writes the npz of the steps of all ranks as they come, and never holds them all.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeVar
from zipfile import ZipFile

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.atomic_files import naming, part_of, publish, sync, write_whole
from dlio_bench.counters import EpochCost, PassCost
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.job import path_of
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.ground.launching import read_result
from dlio_bench.harness.storage.cache import CpuShares, Residency
from dlio_bench.reports.document.environment import Environment
from dlio_bench.reports.document.trials import Inference, RankLoad, Reduced
from dlio_bench.reports.document.types import Network

T = TypeVar("T", bound=Struct)
Array = npt.NDArray[Any]
_write_header: Callable[[IO[bytes], Mapping[str, Any]], None] = np.lib.format.write_array_header_1_0
ALIKE = ("epoch", "validation_epoch")  # on every rank, in every trial


class JobMeasured(Struct, frozen=True):
    """Of the whole job: what its ranks know of their machines, and the job with the sizes and folders that its nodes
    decided."""

    environment: Environment
    job: Job


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
    trained: list[Network | None]
    verified: Verified | None
    ranks: list[list[RankTrial]]
    damage: str | None = None


def save(measured: Struct, path: Path) -> None:
    """Write a document, whole or not at all."""
    write_whole(path, msgspec.json.encode(measured, enc_hook=_as_json_value))


def _as_json_value(value: object) -> int | float | str:
    """NumPy's numbers as Python's, and paths as texts."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be saved in what ranks measured")


def load(path: Path, kind: type[T]) -> T:
    """What the ranks left in a file. EnvironmentFailure if it is not there."""
    return msgspec.json.decode(read_result(path, "choose one with --out"), type=kind, dec_hook=path_of)


def write_steps(path: Path, trials: Sequence[Mapping[str, Array]], comm: Comm) -> None:
    """Write the arrays of all ranks, [trial, rank, ...], as np.savez does; those in ALIKE once, as they are.

    trials: the arrays of this rank by name, for each trial; of the same shapes on every rank. The file is whole or
    absent. All ranks call it together. OSError on rank 0.
    """
    with archive_of(path) if comm.rank == 0 else nullcontext() as archive:
        for name, first in trials[0].items():
            if name in ALIKE:
                add_array(archive, name, first.dtype, first.shape, [first])
                continue
            blocks = (block for arrays in trials for block in comm.blocks(np.asarray(arrays[name], order="C")))
            add_array(archive, name, first.dtype, (len(trials), comm.size, *first.shape), blocks)


@contextmanager
def archive_of(path: Path) -> Iterator[ZipFile]:
    """A new archive, whole or absent. OSError."""
    with naming(path):
        with part_of(path).open("wb") as file, ZipFile(file, "w") as archive:
            yield archive
        publish(part_of(path), path)
        sync(path.parent)


def add_array(
    archive: ZipFile | None, name: str, kind: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]
) -> None:
    """One array, whose parts come one after the other (numpy.lib.format; the zip entry as np.savez makes it).

    archive: None on a rank that only takes part in making the blocks.
    """
    if archive is None:
        deque(blocks, maxlen=0)
        return
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        _write_header(member, {"descr": kind.str, "fortran_order": False, "shape": shape})
        for block in blocks:
            member.write(block.data)
