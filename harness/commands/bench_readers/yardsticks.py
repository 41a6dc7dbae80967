"""The yardsticks of our readers: each is a function that reads this rank's share of an epoch once.

They keep and check nothing, unless the library does so by itself; what they leave out makes them faster.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.formats.container import H5PY
from dlio_bench.datagen.formats.hdf5 import datasets_of, meant
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.commands.bench_readers.job import TFDATA, TFDATA_INTERLEAVED, H5py
from dlio_bench.harness.readers.session import Planned, SampleView, largest, touch_buffer
from dlio_bench.harness.storage.direct import Alignment

Work = Callable[[], None]
Arrays = dict[str, npt.NDArray[Any]]


class NotMeasured(Exception):  # noqa: N818 - it is no error: a row says why it is empty
    """A yardstick cannot be used here; the message is the reason."""


@contextmanager
def raw(form: SampleView, plan: Sequence[Planned], threads: int, alignment: Alignment | None = None) -> Iterator[Work]:
    """preadv of the plan's extents by threads that share nothing: each reads batches of its own into one slot, which
    stays in the processor's cache as far as it fits.

    Files are open and every call is prepared before the clock starts: this is the limit of the storage as Python
    reaches it. With `alignment` reads are direct: the whole blocks of each extent, wherever in the slot they fit.
    """
    size = largest(plan)
    block, flags = (1, 0) if alignment is None else (alignment.block, os.O_DIRECT)
    room = size if alignment is None else -(-size // block) * block + 2 * block
    slots = [memoryview(touch_buffer(room)) for _ in range(threads)]
    calls: list[list[tuple[int, list[memoryview], int, int]]] = [[] for _ in range(threads)]
    with ExitStack() as stack:
        handles: dict[int, int] = {}
        for step, batch in enumerate(plan):
            memory, of_thread = slots[step % threads], calls[step % threads]
            files, offsets, stored, _ = form.dataset.locate(batch.ids, form.fields)
            for row, file in enumerate(files.tolist()):
                if file not in handles:
                    handles[file] = os.open(form.dataset.path(file), os.O_RDONLY | os.O_CLOEXEC | flags)
                    stack.callback(os.close, handles[file])
                at = int(batch.starts[row])
                for offset, length in _merge_extents(offsets[row].tolist(), stored[row].tolist()):
                    first, end = offset // block * block, -(-(offset + length) // block) * block
                    place = at // block * block
                    into = [memory[place : place + end - first]]
                    of_thread.append((handles[file], into, first, offset + length - first))
                    at += length
        yield lambda: _run_threads([partial(_issue, of_thread) for of_thread in calls])


def _issue(calls: Sequence[tuple[int, list[memoryview], int, int]]) -> None:
    preadv = os.preadv
    for handle, into, offset, needed in calls:
        if preadv(handle, into, offset) < needed:
            raise DataError(f"A file ended at byte {offset}, inside a sample.")


def _merge_extents(offsets: list[int], lengths: list[int]) -> list[tuple[int, int]]:
    """Extents of a sample that touch, as one."""
    reads: list[tuple[int, int]] = []
    for offset, length in zip(offsets, lengths, strict=True):
        if reads and sum(reads[-1]) == offset:
            reads[-1] = (reads[-1][0], reads[-1][1] + length)
        else:
            reads.append((offset, length))
    return reads


def plain_batches(form: SampleView, plan: Sequence[Planned]) -> Iterator[Batch]:
    """The plain loop of one thread, for the run's own trainer: HDF5 through h5py, else open, seek and read."""
    if CONTAINERS[form.dataset.manifest.container].read_with == H5PY:
        yield from _plain_h5py(form, plan)
        return
    for batch in plan:
        files, offsets, stored, _ = form.dataset.locate(batch.ids, form.fields)
        parts = []
        for file, starts, lengths in zip(files.tolist(), offsets.tolist(), stored.tolist(), strict=True):
            with form.dataset.path(file).open("rb") as stream:
                for start, length in zip(starts, lengths, strict=True):
                    stream.seek(start)
                    parts.append(np.frombuffer(stream.read(length), dtype=np.uint8))
        yield Batch(batch.ids, (Block(_concatenate(parts), batch.starts),))


def _plain_h5py(form: SampleView, plan: Sequence[Planned]) -> Iterator[Batch]:
    with OpenFiles(form) as opened:
        for batch in plan:
            parts = opened.batch(batch.ids.tolist(), form.dataset.locate(batch.ids, form.fields)[0].tolist())
            flat = [np.atleast_1d(part).reshape(-1).view(np.uint8) for part in parts]
            yield Batch(batch.ids, (Block(_concatenate(flat), batch.starts),))


def _concatenate(parts: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@contextmanager
def h5py(form: SampleView, plan: Sequence[Planned], how: H5py) -> Iterator[Work]:
    """h5py, whole batches of `ds[i]`, or `read_direct` into arrays of a batch made before.

    The threads share out the batches. Files of many samples stay open, one handle a thread.
    """
    places = [form.dataset.locate(batch.ids, form.fields)[0].tolist() for batch in plan]
    batches = [list(zip(batch.ids.tolist(), files, strict=True)) for batch, files in zip(plan, places, strict=True)]
    most = max(map(len, batches), default=0)
    shares = [
        partial(_through_h5py, form, batches[number :: how.threads], _arrays(form, most) if how.direct else None)
        for number in range(how.threads)
    ]
    yield lambda: _run_threads(shares)


def _arrays(form: SampleView, samples: int) -> Arrays:
    """An array for a batch of each field, [samples, ...], its pages touched."""
    fields = [field for field in form.dataset.manifest.fields if field.name in form.fields]
    return {field.name: np.full((samples, *field.shape), 0, dtype=field.dtype) for field in fields}


def _through_h5py(form: SampleView, batches: Sequence[Sequence[tuple[int, int]]], arrays: Arrays | None) -> None:
    with OpenFiles(form) as opened:
        for batch in batches:  # each is whole before the next begins, as a trainer needs it
            opened.batch([sample for sample, _ in batch], [file for _, file in batch], arrays)


class OpenFiles(ExitStack):
    """HDF5 files of one thread. Those of many samples stay open, those of one are opened for each."""

    def __init__(self, form: SampleView) -> None:
        super().__init__()
        self._form = form
        self._names = [(name, *name.removesuffix("]").partition("[")[::2]) for name in form.fields]
        self._of_one = form.dataset.file_per_sample
        self._kept: dict[int, dict[str, Any]] = {}

    def batch(self, ids: Sequence[int], files: Sequence[int], arrays: Arrays | None = None) -> list[Any]:
        """Every field of every sample, as `ds[i]`; those that are arrays by read_direct into `arrays`, if given."""
        import h5py as library  # type: ignore[import-untyped]  # it has no stubs; late, for its 0.1 s

        made = []
        for place, (sample, file) in enumerate(zip(ids, files, strict=True)):
            opened = None
            datasets = self._kept.get(file)
            if datasets is None:
                path = self._form.dataset.path(file)
                opened = library.File(path, "r", locking=False)
                known = datasets_of(opened)
                datasets = {stem: meant(path, known, stem) for _, stem, _ in self._names}
                if not self._of_one:
                    self._kept[file] = datasets
                    self.enter_context(opened)
            for name, stem, part in self._names:
                row = ... if self._of_one else sample - self._form.dataset.manifest.files[file].first
                index: Any = int(part) if part else row
                if arrays is not None and arrays[name].ndim > 1:
                    datasets[stem].read_direct(arrays[name], np.s_[index], np.s_[place])
                else:
                    made.append(datasets[stem][index])
            if opened is not None and self._of_one:
                opened.close()
        return made


@contextmanager
def tfdata(form: SampleView, files: Sequence[int], name: str, batch: int) -> Iterator[Work]:
    """tf.data tuned, one of TFDATAS: the files one after the other, record by record or in batches; or interleaved by
    AUTOTUNE.

    It delivers the records as scalars of type string, with no operation on them, and checks their CRC, as it always
    does. `files` are this rank's. Tried and slower, or not faster: decode_raw on each record (half the rate at
    0.1 MB), num_parallel_reads, ragged batches, buffers of 1 to 8 MiB instead of 256 KiB.
    """
    try:
        tf = tensorflow()
    except EnvironmentFailure as error:
        raise NotMeasured(
            "TensorFlow is not installed (pip install 'dlio-bench[tensorflow]', with Python 3.11 or 3.12)"
        ) from error
    manifest = form.dataset.manifest
    names = [str(form.dataset.path(file)) for file in files]
    count = sum(manifest.files[file].samples for file in files)
    options = tf.data.Options()
    options.deterministic = False
    records = tf.data.TFRecordDataset(names)
    if name == TFDATA_INTERLEAVED:
        records = tf.data.Dataset.from_tensor_slices(names).interleave(
            tf.data.TFRecordDataset, cycle_length=min(len(names), 16), num_parallel_calls=tf.data.AUTOTUNE
        )
    samples = records if name == TFDATA else records.batch(batch).prefetch(tf.data.AUTOTUNE)
    samples = samples.with_options(options)

    def epoch() -> None:
        seen = sum(1 if name == TFDATA else len(some) for some in samples)
        if seen != count:
            raise DataError(f"tf.data gave {seen} of {count} samples.")

    yield epoch


@contextmanager
def dali(form: SampleView, plan: Sequence[Planned], threads: int, mmap: bool) -> Iterator[Work]:
    """DALI's reader of whole files, in the order of the plan, without a GPU; their bytes as they are.

    It goes on from epoch to epoch, and so has some batches ready when the clock starts.
    """
    try:
        from nvidia.dali import Pipeline, fn
    except ImportError as error:
        raise NotMeasured("DALI is not installed (pip install nvidia-dali-cuda120, 1 GB)") from error
    ids = np.concatenate([batch.ids for batch in plan])
    files = [str(form.dataset.path(file)) for file in form.dataset.locate(ids, form.fields)[0].tolist()]

    pipeline = Pipeline(batch_size=len(plan[0].ids), num_threads=threads, device_id=None)
    with pipeline:
        pipeline.set_outputs(*fn.readers.file(files=files, dont_use_mmap=not mmap))
    pipeline.build()

    def epoch() -> None:
        seen = sum(len(pipeline.run()[0]) for _ in plan)
        if seen != len(ids):
            raise DataError(f"DALI gave {seen} of {len(ids)} samples.")

    yield epoch


def _run_threads(works: Sequence[Work]) -> None:
    """Run each in a thread of its own (alone in this one), and raise what one of them raised."""
    if len(works) == 1:
        works[0]()
        return
    errors: list[BaseException] = []

    def run_guarded(work: Work) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run_guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def share_of_files(form: SampleView, rank: int, ranks: int) -> list[int]:
    """Every `ranks`-th file. UsageError where there are fewer files than ranks."""
    files = list(range(len(form.dataset.training_files)))[rank::ranks]
    if not files:
        raise UsageError(
            f"{ranks} ranks share {len(form.dataset.training_files)} files. Ask for more data with --size."
        )
    return files
