"""Who reads which bytes in which sequence: pure functions to int64 [reads, 3] = file, offset, bytes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.commands.storage_bench.sizing import FileSetShape
from dlio_bench.harness.plan.orders import permutation

Reads = npt.NDArray[np.int64]

SEQUENTIAL, RANDOM, RANGE = "sequential", "random", "range"
PATTERNS = (SEQUENTIAL, RANDOM)


class Files(Struct, frozen=True, eq=False):
    """Files to be read: absolute paths, bytes of each, and where samples lie in them (`Reads`, one a sample)."""

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    samples: Reads

    @property
    def sample_bytes(self) -> int:
        """Mean bytes of a sample."""
        return round(float(self.samples[:, 2].mean()))


def samples_of(shape: FileSetShape) -> Reads:
    """The samples of test files, one behind the other."""
    number = np.arange(shape.samples, dtype=np.int64)
    file, row = np.divmod(number, shape.samples_per_file)
    return np.stack([file, row * shape.sample_bytes, np.full_like(number, shape.sample_bytes)], axis=1)


def samples_in(dataset: Dataset, files: int) -> Reads:
    """The samples in the first `files` training files, each as its longest contiguous piece.

    The rest of a sample (labels, weights) lies elsewhere in some containers; it is small, and reading it would make a
    second request of what any reader may have read beforehand.
    """
    count = sum(entry.samples for entry in dataset.training_files[:files])
    fields = dataset.field_names
    file, offsets, stored, _ = dataset.locate(np.arange(count, dtype=np.int64), fields)
    first, length = longest_runs(offsets, stored)
    return np.stack([file, first, length], axis=1)


def longest_runs(offsets: Reads, lengths: Reads) -> tuple[Reads, Reads]:
    """(offset, length), each int64 [n], of the longest contiguous run of the extents int64 [n, fields] of each row."""
    order = np.argsort(offsets, axis=1, kind="stable")
    offsets, lengths = np.take_along_axis(offsets, order, 1), np.take_along_axis(lengths, order, 1)
    first, length = offsets[:, 0].copy(), lengths[:, 0].copy()  # of the run at hand
    best_first, best_length = first.copy(), length.copy()
    for field in range(1, offsets.shape[1]):
        joins = first + length == offsets[:, field]
        first = np.where(joins, first, offsets[:, field])
        length = np.where(joins, length, 0) + lengths[:, field]
        longer = length > best_length
        best_first, best_length = np.where(longer, first, best_first), np.where(longer, length, best_length)
    return best_first, best_length


def front_to_back(sizes: Sequence[int], readers: int, reader: int) -> Reads:
    """A reader's share of all bytes: whole files where their number allows, parts at the borders where it does not."""
    length = np.array(sizes, dtype=np.int64)
    end = np.cumsum(length)
    start, total = end - length, int(end[-1])
    low = np.maximum(start, reader * total // readers)
    high = np.minimum(end, (reader + 1) * total // readers)
    reads = np.stack([np.arange(len(length), dtype=np.int64), low - start, high - low], axis=1)
    return np.asarray(reads[high > low])


def shuffled_share(samples: Reads, readers: int, reader: int, seed: int, trial: int) -> Reads:
    """A reader's share of all samples in the random order of a trial: each sample is one reader's, once."""
    return np.asarray(samples[permutation(len(samples), trial, seed)[reader::readers]])


def share(files: Files, pattern: str, readers: int, reader: int, seed: int, trial: int) -> Reads:
    """What one reader of `readers` reads in a trial of a pattern."""
    if pattern == SEQUENTIAL:
        return front_to_back(files.sizes, readers, reader)
    return shuffled_share(files.samples, readers, reader, seed, trial)
