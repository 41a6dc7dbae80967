"""CosmoFlow's published inputs: tf.data over TFRecord files, one after the other, records parsed in parallel.

MLPerf: sparticlesteve/cosmoflow-benchmark @559eafb, data/cosmo.py:

    from_tensor_slices -> shuffle(len(files)) -> shard -> TFRecordDataset(compression) -> map(parse, AUTOTUNE)
        -> repeat -> batch -> prefetch(4)

Which file comes when is the plan's, as its order (overlapping-shuffle) says; what follows keeps the order.

Before MLPerf (sc18, original-64): NERSC/CosmoFlow, io_Cosmo.py, which was of TensorFlow 1's queues:

    string_input_producer(files, shuffle) -> TFRecordReader -> parse -> shuffle_batch(1, num_threads=2, capacity=204,
        min_after_dequeue=200)

Each rank shuffles all files for itself. The queues are played by tf.data: one file after the other, 2 threads that
parse, 4 records read ahead, and a pool that holds 200 samples whenever one is drawn from it. (The queues themselves are
still in tf.compat.v1, but which samples they deliver in an epoch no plan could say.) A sample is drawn from those of
its epoch; reading goes on into the next ones, so that a rank reads 201 samples before its first step, as published. An
epoch is the plan's as a multiset.

Bytes are counted when a batch is delivered: records with their frames, or the whole file where it is compressed. What
TensorFlow reads ahead is not known to the program, and neither are its seconds: they are not counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block, Ids, is_validation
from dlio_bench.benchmarks import tensors
from dlio_bench.benchmarks.cosmoflow import decode as ours
from dlio_bench.benchmarks.cosmoflow.generations import Early, early
from dlio_bench.benchmarks.cosmoflow.layout import REDSHIFTS
from dlio_bench.benchmarks.cosmoflow.physical import PARAMETERS
from dlio_bench.benchmarks.pipeline import ANEW, CostOf, Decode, Plan, Upstream, failure_of_files
from dlio_bench.benchmarks.records import framing_bytes, requested_bytes, runs, sequence
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, DataError

PREFETCH = 4
QUEUE_THREADS, LEAST, CAPACITY = 2, 200, 204  # of shuffle_batch
_INTRA_OP = 1  # threads inside an op; the pool has one a core. The published figures are for other processors.


class RecordPipeline:
    """The pipeline: threads of TensorFlow, no processes."""

    processes: tuple[int, ...] = ()

    def __init__(self) -> None:
        """Load TensorFlow, before anything is timed. EnvironmentFailure where it is not installed."""
        self._tf = tensors.tensorflow()
        self.options = {"threads": tensors.cores(), "processes": 0, "prefetch": PREFETCH}

    def decode(self, dataset: Dataset) -> Decode:
        """See Pipeline.decode: the same operations on one record."""
        stage = tensors.graph_of(self._stage(dataset))
        whole = ours.decode(dataset)

        def many(ids: Sequence[int], samples: Sequence[Sequence[memoryview]]) -> Iterator[bytes]:
            del ids
            try:
                for voxels, targets, _ in tensors.each(stage, [[bytes(parts[0])] for parts in samples], self._limits()):
                    yield tensors.array(voxels).tobytes() + tensors.array(targets).tobytes()
            except self._tf.errors.OpError as error:
                raise DataError(f"TensorFlow cannot parse the record: {error.message} {ANEW}") from error

        def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
            out[:] = b"".join(many([sample], [parts]))

        return Decode(ours.FIELDS, whole.sample_bytes, apply, f"{whole.what}, by TensorFlow", many)

    def requested_bytes(self, dataset: Dataset, plan: Plan) -> dict[int, int]:
        """See Pipeline.requested_bytes."""
        return requested_bytes(dataset, plan)

    @contextmanager
    def batches(self, dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Iterator[Batch]]:
        """See Pipeline.batches."""
        build = partial(self._elements, dataset, self._stage(dataset))

        def take(epoch: int, ids: Ids, element: Any) -> tuple[Batch, int]:
            *drawn, voxels, targets, lengths = (tensors.array(tensor) for tensor in element)
            ids = drawn[0] if drawn else ids
            size = framing_bytes(dataset, ids, lengths)
            cost(epoch).bytes_requested += size
            return Batch(ids, (Block.even(voxels), Block.even(targets))), size

        def explain(stretch: tensors.Stretch, message: str) -> BenchError:
            return failure_of_files(dataset, dict.fromkeys(dataset.locate(stretch.ids, ())[0].tolist()), message)

        with tensors.plan_batches(plan, build, take, explain) as batches:
            yield batches

    def close(self) -> None:
        """Nothing to end."""

    def _elements(self, dataset: Dataset, stage: Any, stretch: tensors.Stretch) -> Iterable[Any]:
        """Voxels, targets and bytes of records, batch by batch; before them the ids, where these are not the plan's."""
        elements: Iterable[Any] = (
            sequence(dataset, runs(dataset, stretch.ids))
            .map(tensors.plain(stage), num_parallel_calls=self._tf.data.AUTOTUNE)
            .batch(stretch.size)
            .prefetch(PREFETCH)
            .with_options(self._limits())
        )
        return elements

    def _limits(self) -> Any:
        return tensors.thread_options(tensors.cores(), _INTRA_OP)

    def _stage(self, dataset: Dataset) -> Any:
        """Record -> voxels, targets, bytes of the record."""
        tf, side = self._tf, ours.side(dataset)
        text = tf.io.FixedLenFeature([], tf.string)

        def counts(record: Any) -> tuple[Any, Any, Any]:
            features = {"x": text, "y": tf.io.FixedLenFeature([PARAMETERS], tf.float32)}
            parsed = tf.io.parse_single_example(record, features)
            voxels = tf.reshape(tf.io.decode_raw(parsed["x"], tf.int16), (side, side, side, REDSHIFTS))
            return tf.math.log(tf.cast(voxels, tf.float32) + 1.0), parsed["y"], tf.strings.length(record)

        def density(generation: Early, record: Any) -> tuple[Any, Any, Any]:
            parsed = tf.io.parse_single_example(record, {"data_raw": text, "label_raw": text})
            numbers = tf.float32 if generation.itemsize == 4 else tf.float64
            voxels = tf.reshape(tf.io.decode_raw(parsed["data_raw"], numbers), (side, side, side, 1))
            targets = tf.reshape(tf.io.decode_raw(parsed["label_raw"], numbers), (generation.targets,))
            means, deviations = (tf.constant(row, numbers) for row in (generation.means, generation.deviations))
            targets = (targets - means) / deviations
            voxels = voxels / tf.reduce_mean(voxels)
            return tf.cast(voxels, tf.float32), tf.cast(targets, tf.float32), tf.strings.length(record)

        generation = early(dataset)
        return counts if generation is None else partial(density, generation)


class Queues(RecordPipeline):
    """The pipeline of before MLPerf: a pool that samples are drawn from."""

    def __init__(self) -> None:
        """As `RecordPipeline`."""
        super().__init__()
        self.options = {"threads": QUEUE_THREADS, "processes": 0, "prefetch": CAPACITY - LEAST, "pool": LEAST}

    def _elements(self, dataset: Dataset, stage: Any, stretch: tensors.Stretch) -> Iterable[Any]:
        if is_validation(stretch.batches[0][0]):
            return super()._elements(dataset, stage, stretch)
        records = sequence(dataset, runs(dataset, stretch.ids))
        parsed = records.map(tensors.plain(stage), num_parallel_calls=QUEUE_THREADS)
        ahead = parsed.prefetch(CAPACITY - LEAST).with_options(tensors.thread_options(QUEUE_THREADS, _INTRA_OP))
        return _draw_batches(zip(stretch.ids, ahead, strict=True), stretch)


def _draw_batches(stream: Iterator[tuple[np.int64, Any]], stretch: tensors.Stretch) -> Iterator[Any]:
    """Batches of a stream of samples, drawn from a pool of them; the stream is read on before each draw."""
    pool: list[tuple[np.int64, Any]] = []  # in the order of the stream: those of the present epoch stand first
    for epoch, ids in stretch.epochs:
        draws, left = np.random.default_rng(epoch), len(ids)
        while left:
            batch = []
            for _ in range(min(left, stretch.size)):
                pool += islice(stream, LEAST + 1 - len(pool))
                batch.append(pool.pop(int(draws.integers(min(left, len(pool))))))
                left -= 1
            numbers, elements = zip(*batch, strict=True)
            parts = zip(*elements, strict=True)
            yield np.array(numbers), *(np.stack([tensors.array(part) for part in column]) for column in parts)


UPSTREAM = Upstream(
    order="overlapping-shuffle",
    orders=("overlapping-shuffle", "file-shuffle", "buffered-shuffle", "sequential"),
    exactly_once=False,
    order_known=True,
    source="sparticlesteve/cosmoflow-benchmark @559eafb, data/cosmo.py",
    defects=(
        "Files are shuffled before they are dealt to ranks, by each rank for itself: the shares of ranks overlap, and "
        "in an epoch some files are read several times and others never.",
    ),
    departures=(
        "What is left of an epoch and fills no batch is dropped. The published pipeline repeats before it cuts "
        "batches, so that a batch can hold samples of two epochs.",
        "The last batch of a validation pass is as small as need be; the published one is dropped.",
        "Files are shuffled by the run's seed.",
        "With --shard node all nodes read one set of files; where each has a whole set of its own (n_file_sets), a "
        "published epoch is as many times as long as there are nodes.",
    ),
    start=RecordPipeline,
    tensorflow=True,
)

UPSTREAM_QUEUES = replace(
    UPSTREAM,
    order="unsharded-shuffle",
    orders=("unsharded-shuffle", *UPSTREAM.orders),
    order_known=False,
    source="NERSC/CosmoFlow, io_Cosmo.py of branches CoriRunsMarch20 @56c800f and AugTests @6e50963",
    defects=(
        "Files are not dealt: every rank shuffles all of them for itself, and an epoch is a count of samples.",
        "A rank reads 201 samples before its first step.",
        "One file is read at a time, and 4 samples ahead of the pool: a late sample is soon waited for.",
    ),
    departures=(
        "tf.data and a pool in Python play the queues of TensorFlow 1 (string_input_producer, TFRecordReader, "
        "shuffle_batch), with 2 threads as on Cori in March 2018; it had 6 in April and August, and Piz Daint 4.",
        "A sample is drawn from those of its epoch that are in the pool; the queue knew no epochs.",
        "Nothing is read beyond the last sample of a trial, where the queues read on.",
        "What is left of a pass over all files and makes no epoch is dropped; the queue goes on into the next pass.",
        "A validation pass reads one file after the other, without a pool, and begins when its turn comes. As "
        "published, queues of 204 and 68 samples for validation and test were filled beside that of training.",
        "Files are shuffled by the run's seed, and draws by the number of the epoch.",
        "All samples differ. In sc18 as published each came twice, by the name of the set (13000-2xDupe), and a file "
        "for validation repeats the 8 samples of one simulation.",
        "The pipeline of original-64 also turned and mirrored cubes by chance.",
    ),
    start=Queues,
)
