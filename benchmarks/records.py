"""Records of a plan as tf.data reads them: which files and which parts of them, and what that asks for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.benchmarks import tensors
from dlio_bench.benchmarks.pipeline import Plan
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.formats.tfrecord import HEAD, TAIL


class RecordRuns(Struct, frozen=True, eq=False):
    """Parts of files, int64 [parts] each: `counts` records of file `files`, behind its first `skips`."""

    files: Ids
    skips: Ids
    counts: Ids
    firsts: Ids  # the id of the first record of each part


def runs(dataset: Dataset, ids: Ids) -> RecordRuns:
    """The samples in this order as parts of files, as long as ids follow each other."""
    files = dataset.locate(ids, ())[0]
    breaks = np.flatnonzero((np.diff(files) != 0) | (np.diff(ids) != 1)) + 1
    starts = np.concatenate([[0], breaks]) if len(ids) else breaks
    counts = np.diff(np.append(starts, len(ids)))
    first_of = np.array([entry.first for entry in dataset.manifest.files], dtype=np.int64)
    return RecordRuns(files[starts], ids[starts] - first_of[files[starts]], counts, ids[starts])


def compression(dataset: Dataset) -> str | None:
    """As TFRecordDataset names it; None where there are no TFRecords."""
    return CONTAINERS[dataset.manifest.container].tfrecords


def part(dataset: Dataset, path: Any, skip: Any, count: Any, buffer: int | None = None) -> Any:
    """The records of one part of a file; an error of TensorFlow's where the file has fewer."""
    tf = tensors.tensorflow()
    records = tf.data.TFRecordDataset(path, compression_type=compression(dataset), buffer_size=buffer)
    return records.skip(skip).take(count).apply(tf.data.experimental.assert_cardinality(count))


def paths(dataset: Dataset, files: Ids) -> list[str]:
    """Where these files are."""
    return [str(dataset.path(file)) for file in files.tolist()]


def sequence(dataset: Dataset, parts: RecordRuns) -> Any:
    """All records of the parts, one after the other."""
    tf = tensors.tensorflow()
    slices = tf.data.Dataset.from_tensor_slices((paths(dataset, parts.files), parts.skips, parts.counts))
    return slices.flat_map(tensors.plain(lambda path, skip, count: part(dataset, path, skip, count)))


def requested_bytes(dataset: Dataset, plan: Plan) -> dict[int, int]:
    """Epoch -> bytes of the plan's records: with their frames, or as whole files where these are compressed or bare."""
    frame = HEAD + TAIL if compression(dataset) == "" else 0
    sizes: dict[int, int] = {}
    for epoch, ids in plan:
        stored = int(dataset.locate(ids, [dataset.manifest.fields[0].name])[2].sum())
        sizes[epoch] = sizes.get(epoch, 0) + stored + frame * len(ids)
    return sizes


def framing_bytes(dataset: Dataset, ids: Ids, lengths: Any) -> int:
    """Bytes behind delivered records of these lengths; of compressed files, their sizes."""
    if compression(dataset):
        return sum(dataset.manifest.files[file].bytes for file in dataset.locate(ids, ())[0].tolist())
    return int(lengths.sum()) + (len(lengths) * (HEAD + TAIL) if compression(dataset) == "" else 0)


def interleave_files(
    dataset: Dataset,
    epochs: Sequence[tuple[int, Ids]],
    *,
    files: int,
    cycle: int,
    calls: Any,
    items: int,
    buffer: int | None = None,
    ahead: int = 0,
) -> Any:
    """(id, record) of every epoch, as a multiset: files through a shuffle buffer, read `cycle` at a time, shuffled.

    files, items: sizes of the two shuffle buffers, 0 for none. ahead: records read ahead of the second, 0 for none.
    Epochs do not mix.
    """
    records = None
    for epoch, ids in epochs:
        records_of_epoch = _epoch(dataset, epoch, ids, files, cycle, calls, items, buffer, ahead)
        records = records_of_epoch if records is None else records.concatenate(records_of_epoch)
    return records


def _epoch(
    dataset: Dataset,
    epoch: int,
    ids: Ids,
    files: int,
    cycle: int,
    calls: Any,
    items: int,
    buffer: int | None,
    ahead: int,
) -> Any:
    tf = tensors.tensorflow()
    different, times = np.unique(ids, return_counts=True)
    parts = _covering(dataset, different)
    slices = tf.data.Dataset.from_tensor_slices((paths(dataset, parts.files), parts.skips, parts.counts, parts.firsts))
    if files:
        slices = slices.shuffle(files, seed=epoch)

    def number_records(path: Any, skip: Any, count: Any, first: Any) -> Any:
        numbers = tf.data.Dataset.range(first, first + count)
        return tf.data.Dataset.zip((numbers, part(dataset, path, skip, count, buffer)))

    records = slices.interleave(
        tensors.plain(number_records), cycle_length=min(cycle, len(parts.files)), num_parallel_calls=calls
    )
    if not int(parts.counts.sum()) == len(different) == len(ids):  # gaps within files, or samples that come twice
        wanted = np.zeros(int(different[-1] - different[0]) + 1, dtype=np.int64)
        wanted[different - different[0]] = times
        table, lowest = tf.constant(wanted), int(different[0])
        records = records.flat_map(
            tensors.plain(
                lambda number, record: tf.data.Dataset.from_tensors((number, record)).repeat(table[number - lowest])
            )
        )
    records = records.prefetch(ahead) if ahead else records
    return records.shuffle(items, seed=epoch) if items else records


def _covering(dataset: Dataset, ids: Ids) -> RecordRuns:
    """One part of each file, from its first wanted record to its last. `ids` rise."""
    files = dataset.locate(ids, ())[0]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(files) != 0]))
    lasts = ids[np.append(starts[1:], len(ids)) - 1]
    first_of = np.array([entry.first for entry in dataset.manifest.files], dtype=np.int64)
    return RecordRuns(files[starts], ids[starts] - first_of[files[starts]], lasts - ids[starts] + 1, ids[starts])
