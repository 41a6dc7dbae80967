"""HEPCNNB's published input: whole files read into memory, permuted there, cut into batches one after the other.

Source: NERSC/DL-Parallel-IO @290ed4a, hep_cnn/networks/binary_classifier_tf.py, class DataSet. There the constructor
reads the first file; here that happens when the first batch is asked for, since nothing may be read before the clock
starts. Which file comes when, and the permutation of its samples, are the plan's. The last batch of a validation pass
was filled up from the file behind it; here it is smaller.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench import recorder
from dlio_bench.batches import Batch, Block, Ids, is_validation
from dlio_bench.benchmarks.hepcnnb.decode import FIELDS
from dlio_bench.benchmarks.hepcnnb.decode import decode as decode_of
from dlio_bench.benchmarks.hepcnnb.layout import SCALARS
from dlio_bench.benchmarks.pipeline import CostOf, Decode, Plan, Upstream, read_failure
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.recorder import NO_EPOCH

Arrays = dict[str, npt.NDArray[Any]]
_READ = ("data", "label", "normweight", "weight", "psr")  # in the order of load_next_file
LOAD_FILE, FILE_READ, OPEN = CODE["Load File"], CODE["HDF5 File Read"], CODE["open"]


class Load(Struct, frozen=True):
    """One turn of a file: `ids` are the first of its permuted samples. `reads`: whether it comes from the disk."""

    epoch: int  # that its cost is counted in
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

    def requested_bytes(self, dataset: Dataset, plan: Plan) -> dict[int, int]:
        """See Pipeline.requested_bytes: every load asks for the five datasets of the whole file."""
        sizes = {epoch: 0 for epoch, _ in plan}
        for load in chain(*loads(dataset, plan)):
            if load.reads:
                entry = dataset.manifest.files[load.file]
                samples = np.arange(entry.first, entry.first + entry.samples)
                sizes[load.epoch] += int(dataset.locate(samples, FIELDS)[2].sum())
        return sizes

    @contextmanager
    def batches(self, dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Iterator[Batch]]:
        """See Pipeline.batches."""
        yield _deliver(dataset, plan, cost)

    def close(self) -> None:
        """Nothing to end."""


def loads(dataset: Dataset, plan: Plan) -> tuple[list[Load], list[Load]]:
    """The files that the plan asks for, one after the other: those of training, and those of its validation passes.

    Each is a data set of its own: a rank with one file of it reads that once and never again. A pass ends when its
    files have come to their end, and by then the first file of the next pass has been loaded, whether or not there is
    one: k passes over F files are k F + 1 reads (the published counts: 5 F + 4 F + 1 in 5 epochs with local shuffling,
    where training ended before its last epoch did, and 5 F + 5 F + 1 with global shuffling). Which file comes behind
    the last pass no plan says; here it is the first of all.
    """
    training = list(chain(*_turns(dataset, [batch for batch in plan if not is_validation(batch[0])])))
    passes = _turns(dataset, [batch for batch in plan if is_validation(batch[0])])
    validation = list(chain(*passes))
    if validation:
        ends = np.cumsum([len(turns) for turns in passes])
        for end, turns in zip(ends[:-1], passes, strict=False):
            validation[end] = replace(validation[end], epoch=turns[0].epoch)
        last, first = validation[-1], validation[0]
        validation.append(replace(first, epoch=last.epoch, ids=first.ids[:0]))
    return _drop_repeated_reads(training), _drop_repeated_reads(validation)


def _turns(dataset: Dataset, plan: Plan) -> list[list[Load]]:
    """The files of each epoch, one after the other."""
    turns_by_epoch: list[list[Load]] = []
    for epoch in dict.fromkeys(epoch for epoch, _ in plan):
        ids = np.concatenate([ids for other, ids in plan if other == epoch])
        files = dataset.locate(ids, ())[0]
        parts = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(files)) + 1)
        turns_by_epoch.append([Load(epoch, int(files[part[0]]), ids[part], reads=True) for part in parts if len(part)])
    return [turns for turns in turns_by_epoch if turns]


def _drop_repeated_reads(turns: list[Load]) -> list[Load]:
    """The same, but a single file is read by its first turn alone."""
    if len({load.file for load in turns}) > 1:
        return turns
    return [replace(load, reads=number == 0) for number, load in enumerate(turns)]


class _DataSet:
    """The files of one split in turn: one is in memory, its samples permuted, and is cut from its front."""

    def __init__(self, dataset: Dataset, turns: Sequence[Load], cost: CostOf) -> None:
        """Load the first file, as the published constructor does."""
        self._dataset, self._turns, self._cost = dataset, iter(turns), cost
        self._stored: Arrays = {}
        self._permuted: Arrays = {}
        self._left = self._at = 0
        if turns:
            self.load_next()

    def load_next(self) -> None:
        """Go on to the next file, whatever is left of this one."""
        load, started = next(self._turns), time.perf_counter()
        if track := recorder.current_track():
            track.epoch = load.epoch
        if load.reads:
            self._stored = self._permuted = {}  # so that the old file's memory is free before the new one's is taken
            self._stored = _read_file(self._dataset, load.file, self._cost(load.epoch))
        rows = load.ids - self._dataset.manifest.files[load.file].first
        self._permuted = _permute_rows(self._stored, rows, self._cost(load.epoch))
        self._left, self._at = len(load.ids), 0
        if track is not None:
            track.add(LOAD_FILE, started, time.perf_counter(), file=load.file)
            track.epoch = NO_EPOCH

    def take(self, wanted: int) -> list[Arrays]:
        """The next samples: what is left of a file, with the head of the next one behind it."""
        pieces: list[Arrays] = []
        while wanted:
            if self._left == 0:
                self.load_next()
            taken, at = min(wanted, self._left), self._at
            pieces.append({name: self._permuted[name][at : at + taken] for name in FIELDS})
            self._left, self._at, wanted = self._left - taken, at + taken, wanted - taken
        return pieces


def _deliver(dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Batch]:
    training, validation = (_DataSet(dataset, turns, cost) for turns in loads(dataset, plan))
    following = [*(epoch for epoch, _ in plan), None][1:]
    for (epoch, ids), after in zip(plan, following, strict=True):
        pieces = (validation if is_validation(epoch) else training).take(len(ids))
        if is_validation(epoch) and after != epoch:
            validation.load_next()
        columns = [[piece[name] for piece in pieces] for name in FIELDS]
        yield Batch(ids, tuple(Block.even(parts[0] if len(parts) == 1 else np.concatenate(parts)) for parts in columns))


def _read_file(dataset: Dataset, file: int, cost: Cost) -> Arrays:
    """The whole datasets of a file ("HDF5 File Read"), images transposed to NHWC (part of "Load File")."""
    import h5py  # type: ignore[import-untyped]  # it has no stubs; late, for its 0.1 s

    path = dataset.path(file)
    started = time.perf_counter()
    try:
        # as with HDF5_USE_FILE_LOCKING=FALSE, under which the study ran
        with h5py.File(path, "r", locking=False) as file_opened:
            opened = time.perf_counter()
            arrays = {name: file_opened[name][()] for name in _READ}
    except (OSError, KeyError, RuntimeError) as error:
        raise read_failure(path, error) from error
    read, entry = time.perf_counter(), dataset.manifest.files[file]
    # of compressed files less than the arrays have
    size = int(dataset.locate(np.arange(entry.first, entry.first + entry.samples), FIELDS)[2].sum())
    cost.read_seconds += read - started
    cost.bytes_requested += size
    if track := recorder.current_track():
        track.add(FILE_READ, started, read, size, file=file)
        track.add(OPEN, started, opened, file=file)
    arrays["data"] = np.ascontiguousarray(np.transpose(arrays["data"], [0, 2, 3, 1]))
    arrays |= {name: arrays[name].astype(SCALARS[name], copy=False) for name in _READ if name in SCALARS}
    cost.decode_seconds += time.perf_counter() - read
    return arrays


def _permute_rows(stored: Arrays, rows: Ids, cost: Cost) -> Arrays:
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
    departures=(
        "What is left of an epoch and fills no batch is dropped. The published code carries it over into the next "
        "epoch: of 709 x 16 samples a rank in batches of 128, 5 epochs are 443 steps there and 440 here.",
        "A validation pass follows each epoch, the last one too: for F files of each split a rank loads 5 F + 5 F + 1 "
        "in 5 epochs. Published are 9 F + 1 with local shuffling, whose last epoch ends a few samples early and is "
        "followed by none, and 10 F + 1 with global shuffling (9 F + 1 on 512 nodes).",
        "The last batch of a validation pass is as small as need be. The published one is filled up from the file that "
        "the next pass begins with, which is loaded here as well; behind the last pass it is the first file of all.",
        "The first file is loaded when the first batch is asked for, inside the clock, and not before training begins.",
        "Files are listed by their names and shuffled by the run's seed, and not listed as os.listdir finds them and "
        "shuffled by RandomState(54321).",
        "Not here: `split_file`, by which each rank reads its part of every file; the tf.data pipeline of the later "
        "NERSC/hep_cnn_benchmark @6fab807 (4 files at a time, all files for every rank), for which no measurement was "
        "published; the variant of 64 x 64 pixels, of whose files and samples no counts were published.",
    ),
    start=WholeFiles,
    with_one_file="file-shuffle",
)
