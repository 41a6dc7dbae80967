"""HEPCNNB's published input: whole files read into memory, permuted there, cut into batches one after the other.

Source: NERSC/DL-Parallel-IO @290ed4a, hep_cnn/networks/binary_classifier_tf.py, class DataSet. There the constructor
reads the first file; here that happens when the first batch is asked for, since nothing may be read before the clock
starts. Which file comes when, and the permutation of its samples, are the plan's.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, Block, Cost, Ids
from dlio_bench.benchmarks.failures import read_failure
from dlio_bench.benchmarks.hepcnnb.decode import FIELDS
from dlio_bench.benchmarks.hepcnnb.decode import decode as decode_of
from dlio_bench.benchmarks.pipeline import CostOf, Decode, Plan, Upstream
from dlio_bench.datagen.dataset import Dataset

Arrays = dict[str, npt.NDArray[Any]]
_READ = ("data", "label", "normweight", "weight", "psr")  # in the order of load_next_file


@dataclass(frozen=True)
class Load:
    """One turn of a file: `ids` are the first of its permuted samples. `reads`: whether it comes from the disk."""

    epoch: int
    file: int
    ids: Ids
    reads: bool


class WholeFiles:
    """The pipeline: it has no threads and no processes, the trainer waits for every read."""

    options: dict[str, int] = {"threads": 0, "processes": 0}  # noqa: RUF012 - nobody writes it
    processes: tuple[int, ...] = ()

    def decode(self, dataset: Dataset) -> Decode:
        """See Pipeline.decode."""
        return decode_of(dataset)

    def asks(self, dataset: Dataset, plan: Plan) -> dict[int, int]:
        """See Pipeline.asks: every load asks for the five datasets of the whole file."""
        found = {epoch: 0 for epoch, _ in plan}
        for load in loads(dataset, plan):
            if load.reads:
                entry = dataset.manifest.files[load.file]
                samples = np.arange(entry.first, entry.first + entry.samples)
                found[load.epoch] += int(dataset.locate(samples, FIELDS)[2].sum())
        return found

    @contextmanager
    def batches(self, dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Iterator[Batch]]:
        """See Pipeline.batches."""
        yield _deliver(dataset, plan, cost)

    def close(self) -> None:
        """Nothing to end."""


def loads(dataset: Dataset, plan: Plan) -> list[Load]:
    """The files that the plan asks for, one after the other. A rank with one file reads it once and never again."""
    found: list[Load] = []
    for epoch in dict.fromkeys(epoch for epoch, _ in plan):
        ids = np.concatenate([ids for other, ids in plan if other == epoch])
        files = dataset.locate(ids, ())[0]
        parts = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(files)) + 1)
        found += [Load(epoch, int(files[part[0]]), ids[part], reads=True) for part in parts if len(part)]
    if len({load.file for load in found}) == 1:
        found[1:] = [Load(load.epoch, load.file, load.ids, reads=False) for load in found[1:]]
    return found


def _deliver(dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Batch]:
    turns = iter(loads(dataset, plan))
    stored: Arrays = {}
    permuted: Arrays = {}
    left = at = 0
    for _, ids in plan:
        pieces: list[Arrays] = []
        wanted = len(ids)
        while wanted:
            if left == 0:
                load = next(turns)
                if load.reads:
                    stored = permuted = {}  # so that the old file's memory is free before the new one's is taken
                    stored = _read(dataset, load.file, cost(load.epoch))
                permuted = _permuted(stored, load.ids - dataset.manifest.files[load.file].first, cost(load.epoch))
                left, at = len(load.ids), 0
            taken = min(wanted, left)
            pieces.append({name: permuted[name][at : at + taken] for name in FIELDS})
            left, at, wanted = left - taken, at + taken, wanted - taken
        # what is left of a file, with the head of the next one behind it
        columns = [[piece[name] for piece in pieces] for name in FIELDS]
        yield Batch(ids, tuple(Block.even(one[0] if len(one) == 1 else np.concatenate(one)) for one in columns))


def _read(dataset: Dataset, file: int, cost: Cost) -> Arrays:
    """The whole datasets of a file ("HDF5 File Read"), images transposed to NHWC (part of "Load File")."""
    import h5py  # type: ignore[import-untyped]  # it has no stubs; late, for its 0.1 s

    path = dataset.path(file)
    started = time.perf_counter()
    try:
        # as with HDF5_USE_FILE_LOCKING=FALSE, under which the study ran
        with h5py.File(path, "r", locking=False) as opened:
            arrays = {name: opened[name][()] for name in _READ}
    except (OSError, KeyError, RuntimeError) as error:
        raise read_failure(path, error) from error
    read = time.perf_counter()
    cost.read_seconds += read - started
    cost.requested += sum(values.nbytes for values in arrays.values())
    arrays["data"] = np.ascontiguousarray(np.transpose(arrays["data"], [0, 2, 3, 1]))
    cost.decode_seconds += time.perf_counter() - read
    return arrays


def _permuted(stored: Arrays, rows: Ids, cost: Cost) -> Arrays:
    """All arrays of a file permuted: `rows` first, then those that the plan leaves out."""
    started = time.perf_counter()
    order = np.concatenate([rows, np.setdiff1d(np.arange(len(stored["label"])), rows)])
    found = {name: values[order] for name, values in stored.items()}
    cost.decode_seconds += time.perf_counter() - started
    return found


UPSTREAM = Upstream(
    order="global-file-shuffle",
    orders=("global-file-shuffle", "file-shuffle", "sequential"),
    exactly_once=True,
    order_known=True,
    source="NERSC/DL-Parallel-IO @290ed4a, hep_cnn/networks/binary_classifier_tf.py, class DataSet",
    defects=(
        "Samples never change their file: only files are shuffled between ranks.",
        "Every file is read as a whole while the trainer waits; nothing is read ahead.",
        "A rank with one file reads it once and never again, so that no shuffle of files has an effect on its reads.",
    ),
    start=WholeFiles,
    with_one_file="file-shuffle",
)
