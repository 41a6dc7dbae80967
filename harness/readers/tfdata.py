"""A tuned tf.data pipeline: what a careful user of TensorFlow writes for these files, with every option that helps.

TFRecord files of many samples: shuffled and interleaved in parallel, in any order; records with their ids go through
the shuffle buffer of the plan's order. Files of one record: names in the order of the plan, read in parallel, in any
order. HDF5 has no records that tf.data can read: a map calls this project's extent reader, one batch a call, so that a
difference to other readers comes from tf.data and not from HDF5.

An epoch comes as a multiset of its plan. tf.data does not tell what it read ahead or how long its reads took. So the
bytes of records are counted when a batch is delivered, with their frames, or as whole files if these are compressed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from dlio_bench import recorder
from dlio_bench.batches import Batch, Block, Bytes, Ids, is_validation
from dlio_bench.benchmarks import records, tensors
from dlio_bench.benchmarks.pipeline import Plan, failure_of_files, read_failure
from dlio_bench.components import CODE
from dlio_bench.errors import BenchError, DataError
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import OpenExtents, Planned, SampleView, Tally, stored_by_epoch
from dlio_bench.harness.storage.extents import ExtentReader

Call = Callable[..., Any]  # (function, its arguments) -> its result, somewhere

DECODE = CODE["decode"]
FILE_BUFFER = 1024  # names: all files of most shares
READ_BYTES = 1 << 20  # read from a TFRecord file at a time; TensorFlow's default is 256 KB
BUFFER = 10_000  # samples, as `buffered-shuffle` has it without a number


def shuffle_buffer(order: str) -> int:
    """Samples in the buffer of an order by its name: `buffered-shuffle(100)` -> 100; 0 for orders without one."""
    name, _, number = order.removesuffix(")").partition("(")
    return (int(number) if number else BUFFER) if name == "buffered-shuffle" else 0


class TfData:
    """tf.data with a pool of `threads` threads of its own. `buffer`: samples that TensorFlow shuffles; 0 for none."""

    processes: tuple[int, ...] = ()

    def __init__(
        self, sample_view: SampleView, open_extents: OpenExtents, resources: Resources, *, buffer: int
    ) -> None:
        """Load TensorFlow. EnvironmentFailure where it is not installed."""
        self.sample_view = sample_view
        self._tf = tensors.tensorflow()
        self._open_extents = open_extents
        self._threads = max(1, resources.threads)
        self._staging_bytes = resources.staging_bytes
        # a raw file is a sample without a CRC32C of its own
        self._bare = sample_view.dataset.manifest.container == "raw"
        self._compression = records.compression(sample_view.dataset)
        single = sample_view.dataset.file_per_sample
        self._buffer = 0 if single or self._compression != "" else min(buffer, self._buffer_samples())
        self._check = resources.options.check_crc
        self.options = {
            "threads": self._threads,
            "shuffle_buffer": self._buffer,
            "staging_bytes": self._staging_bytes,
        }

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.requested_bytes."""
        batches = [(batch.epoch, batch.ids) for batch in plan]
        if self._has_records:
            return records.requested_bytes(self.sample_view.dataset, batches)
        return stored_by_epoch(self.sample_view, batches)

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        batches = [(batch.epoch, batch.ids) for batch in plan if len(batch.ids)]
        with _own_threads(self._threads if self.sample_view.decode is not None else 0) as call:
            inner = (self._records if self._has_records else self._extents)(batches, tally, call)
            with inner as delivered:
                yield _with_empty(plan, delivered)

    def _buffer_samples(self) -> int:
        """Samples that fit into half of the staging buffer: a tuned shuffle buffer stays within memory."""
        dataset = self.sample_view.dataset
        mean = sum(entry.bytes for entry in dataset.manifest.files) / dataset.samples
        return max(1, int(self._staging_bytes / 2 / mean))

    @property
    def _has_records(self) -> bool:
        """Whether tf.data itself can read the files."""
        return self._bare or self._compression is not None

    def _limits(self) -> Any:
        options = tensors.thread_options(self._threads, 1, ordered=False)
        options.autotune.ram_budget = self._staging_bytes
        return options

    # ---- containers that tf.data can read

    @contextmanager
    def _records(self, plan: Plan, tally: Tally, call: Call) -> Iterator[Iterator[Batch]]:
        tf, sample_view = self._tf, self.sample_view
        auto = tf.data.AUTOTUNE
        failures: list[BenchError] = []

        def build(stretch: tensors.Stretch) -> Any:
            samples: Any = None
            for epoch, ids in stretch.epochs:  # epochs must not mix
                epoch_samples = self._epoch(epoch, ids)
                samples = epoch_samples if samples is None else samples.concatenate(epoch_samples)
            # in order from here on: a batch that overtakes another could leave its epoch
            size = stretch.size
            parallel: dict[str, Any] = {"num_parallel_calls": auto, "deterministic": True}
            if sample_view.decode is not None:
                samples = samples.map(tensors.plain(self._decode_stage(call, failures)), **parallel).batch(size)
            elif size == 1:  # a batch of one is the record itself, without two copies
                samples = samples.map(tensors.plain(_batch_of_one(tf)), **parallel)
            else:
                even = sample_view.dataset.manifest.fields[0].shape[0] > 0
                samples = samples.batch(size, **parallel).map(tensors.plain(_join_records(tf, even=even)), **parallel)
            return samples.prefetch(auto).with_options(self._limits())

        def take(epoch: int, ids: Ids, element: Any) -> tuple[Batch, int]:
            del ids
            ids, content, lengths = (tensors.array(part) for part in element)
            size = records.framing_bytes(sample_view.dataset, ids, lengths)
            tally.of(epoch).bytes_requested += size
            if sample_view.decode is not None:
                return Batch(ids, (Block.even(content),)), size
            batch = Batch(ids, (Block(content, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])),))
            bare = self._check and self._bare  # TFRecord and GZIP check their own
            if bare and (failure := self._altered_failure(ids, map(batch.sample, range(len(ids))))):
                raise failure
            return batch, size

        def explain(stretch: tensors.Stretch, message: str) -> BenchError:
            return failures[0] if failures else self._explain(stretch, message)

        with tensors.plan_batches(plan, build, take, explain) as delivered:
            yield delivered

    def _epoch(self, epoch: int, ids: Ids) -> Any:
        """(id, record) of one epoch."""
        tf, dataset = self._tf, self.sample_view.dataset
        auto = tf.data.AUTOTUNE
        files = dataset.locate(ids, ())[0]
        if dataset.samples > len(dataset.manifest.files):
            buffer = 0 if is_validation(epoch) else self._buffer  # validation is not shuffled
            return records.interleave_files(
                dataset,
                [(epoch, ids)],
                files=FILE_BUFFER if buffer else 0,
                cycle=self._threads,
                calls=auto,
                items=buffer,
                buffer=READ_BYTES,
            )
        names = tf.data.Dataset.from_tensor_slices((ids, records.paths(dataset, files)))
        if self._bare:
            return names.map(
                tensors.plain(lambda number, path: (number, tf.io.read_file(path))), num_parallel_calls=auto
            )

        def number_record(number: Any, path: Any) -> Any:
            record = records.part(dataset, path, np.int64(0), np.int64(1), READ_BYTES)
            return record.map(tensors.plain(lambda content: (number, content)))

        return names.interleave(tensors.plain(number_record), cycle_length=self._threads, num_parallel_calls=auto)

    def _decode_stage(self, call: Call, failures: list[BenchError]) -> Any:
        """(id, record) -> (id, what the application decodes from it, bytes of the record).

        failures: gets each failure, of which TensorFlow keeps only the text.
        """
        tf, decode = self._tf, self.sample_view.decode
        assert decode is not None
        bare = self._check and self._bare  # a picture may decode although a byte of it is wrong

        def decode_timed(sample: int, content: bytes, out: memoryview) -> None:  # in whichever thread
            track, started = recorder.current_track(), time.perf_counter()
            decode.apply(sample, [memoryview(content)], out)
            if track is not None:
                track.add(DECODE, started, time.perf_counter(), len(out), file=self._file(sample))

        def apply(sample: npt.NDArray[np.int64], content: bytes) -> npt.NDArray[np.uint8]:
            out = np.empty(decode.sample_bytes, dtype=np.uint8)
            failure = self._altered_failure(np.array([sample]), [content]) if bare else None
            try:
                if failure is None:
                    call(decode_timed, int(sample), content, memoryview(out))
            except DataError as error:
                failure = read_failure(self._path(int(sample)), error)
            if failure is not None:
                failures.append(failure)
                raise failure
            return out

        def stage(number: Any, record: Any) -> tuple[Any, Any, Any]:
            content = tf.numpy_function(apply, [number, record], tf.uint8)
            content.set_shape((decode.sample_bytes,))
            return number, content, tf.strings.length(record)

        return stage

    # ---- containers that it cannot read

    @contextmanager
    def _extents(self, plan: Plan, tally: Tally, call: Call) -> Iterator[Iterator[Batch]]:
        tf, sample_view = self._tf, self.sample_view
        lock = threading.Condition()
        made: list[ExtentReader] = []
        idle: list[ExtentReader] = []  # those that no call has now
        left = threading.Event()
        failures: list[tuple[int, BenchError]] = []

        def build(stretch: tensors.Stretch) -> Any:
            def read(number: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
                (epoch, ids), step = stretch.batches[int(number)], stretch.steps[int(number)]
                with lock:
                    if left.is_set():
                        return np.empty(0, dtype=np.uint8)  # the session is over
                    if not idle:
                        made.append(self._open_extents())
                        idle.append(made[-1])
                    extents = idle.pop()
                call_tally = Tally()
                out = np.empty(int(sample_view.sizes(ids).sum()), dtype=np.uint8)

                def fill() -> None:  # in whichever thread
                    if track := recorder.current_track():
                        track.epoch, track.step = epoch, step
                    extents.read(ids, memoryview(out), call_tally.of(epoch))

                try:
                    call(fill)
                except BenchError as error:
                    with lock:
                        failures.append((int(number), error))
                    raise
                finally:
                    with lock:
                        idle.append(extents)
                        tally.add(call_tally)
                        lock.notify_all()
                return out

            return (
                tf.data.Dataset.range(len(stretch.batches))
                .map(
                    tensors.plain(lambda number: tf.numpy_function(read, [number], tf.uint8)),
                    num_parallel_calls=self._threads,
                    deterministic=True,
                )
                .prefetch(tf.data.AUTOTUNE)
                .with_options(self._limits())
            )

        def take(epoch: int, ids: Ids, element: Any) -> tuple[Batch, int]:
            del epoch
            starts = np.concatenate([[0], np.cumsum(sample_view.sizes(ids))])
            return Batch(ids, (Block(tensors.array(element), starts),)), 0

        def explain(stretch: tensors.Stretch, message: str) -> BenchError:
            return min(failures, key=lambda failure: failure[0])[1] if failures else self._explain(stretch, message)

        try:
            with tensors.plan_batches(plan, build, take, explain) as delivered:
                yield delivered
        finally:
            left.set()
            with lock:  # TensorFlow does not wait for running calls
                lock.wait_for(lambda: len(idle) == len(made))
            for extents in made:
                extents.close()

    # ---- failures

    def _explain(self, stretch: tensors.Stretch, message: str) -> BenchError:
        dataset = self.sample_view.dataset
        return failure_of_files(dataset, dict.fromkeys(dataset.locate(stretch.ids, ())[0].tolist()), message)

    def _altered_failure(self, ids: Ids, contents: Iterable[bytes | Bytes]) -> BenchError | None:
        """The failure of the first sample whose content has another CRC32C than at generation."""
        expected = self.sample_view.dataset.checksums(ids, self.sample_view.fields)[:, 0].tolist()
        for sample, content, wanted in zip(ids.tolist(), contents, expected, strict=True):
            if crc32c(content) != wanted:
                return read_failure(self._path(sample), DataError("It has another CRC32C than was generated."))
        return None

    def _file(self, sample: int) -> int:
        return int(self.sample_view.dataset.locate(np.array([sample]), ())[0][0])

    def _path(self, sample: int) -> Path:
        return self.sample_view.dataset.path(self._file(sample))


def _with_empty(plan: Sequence[Planned], delivered: Iterator[Batch]) -> Iterator[Batch]:
    """The batches of a plan: tf.data delivers all but the empty ones."""
    nothing = Block(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    for batch in plan:
        yield next(delivered) if len(batch.ids) else Batch(batch.ids, (nothing,))


@contextmanager
def _own_threads(count: int) -> Iterator[Call]:
    """Calls that run in `count` threads of Python, or, for 0, in the thread of the caller.

    TensorFlow's threads take denormal numbers for zero, so decoding must not run in them. A thread inherits this from
    the thread that starts it, so all threads are started here.
    """
    if count == 0:
        yield lambda function, *arguments: function(*arguments)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="decoder") as pool:
        started = threading.Barrier(count)
        for waiting in [pool.submit(started.wait) for _ in range(count)]:
            waiting.result()
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def _batch_of_one(tf: Any) -> Any:
    """(id, record) -> ([id], its bytes, [their number])."""
    return lambda number, record: (
        number[None],
        tf.io.decode_raw(record, tf.uint8),
        tf.strings.length(record)[None],
    )


def _join_records(tf: Any, *, even: bool) -> Any:
    """(ids, records) -> (ids, all bytes, length of each). `even`: all records have one length, which saves a copy."""
    return lambda numbers, contents: (
        numbers,
        tf.reshape(tf.io.decode_raw(contents, tf.uint8), [-1])
        if even
        else tf.io.decode_raw(tf.strings.reduce_join(contents), tf.uint8),
        tf.strings.length(contents),
    )
