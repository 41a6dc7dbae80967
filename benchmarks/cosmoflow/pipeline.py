"""CosmoFlow's published input: tf.data over TFRecord files, one after the other, records parsed in parallel.

Source: sparticlesteve/cosmoflow-benchmark @559eafb, data/cosmo.py:

    from_tensor_slices -> shuffle(len(files)) -> shard -> TFRecordDataset(compression) -> map(parse, AUTOTUNE)
        -> repeat -> batch -> prefetch(4)

Which file comes when is the plan's, as its order (overlapping-shuffle) says; what follows keeps the order. The files
of before MLPerf go through the same pipeline, their voxels divided by their mean: 64 samples a file, in the order of
the file.

Bytes are counted when a batch is delivered: records with their frames, or the whole file where it is compressed. What
TensorFlow reads ahead is not known to the program, and neither are its seconds: they are not counted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from dlio_bench.batches import Batch, Block, Ids
from dlio_bench.benchmarks import tensors
from dlio_bench.benchmarks.cosmoflow import decode as ours
from dlio_bench.benchmarks.cosmoflow.generations import Early, early
from dlio_bench.benchmarks.cosmoflow.layout import REDSHIFTS
from dlio_bench.benchmarks.cosmoflow.physical import PARAMETERS
from dlio_bench.benchmarks.pipeline import ANEW, CostOf, Decode, Plan, Upstream, failure_of_files
from dlio_bench.benchmarks.records import bytes_asked, framing_bytes, runs, sequence
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, DataError

PREFETCH = 4
_INTRA_OP = 1  # threads inside an op; the pool has one a core. The published figures are for other processors.


class Records:
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

    def asks(self, dataset: Dataset, plan: Plan) -> dict[int, int]:
        """See Pipeline.asks."""
        return bytes_asked(dataset, plan)

    @contextmanager
    def batches(self, dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Iterator[Batch]]:
        """See Pipeline.batches."""
        tf, stage = self._tf, self._stage(dataset)

        def build(stretch: tensors.Stretch) -> Any:
            return (
                sequence(dataset, runs(dataset, stretch.ids))
                .map(tensors.plain(stage), num_parallel_calls=tf.data.AUTOTUNE)
                .batch(stretch.size)
                .prefetch(PREFETCH)
                .with_options(self._limits())
            )

        def take(epoch: int, ids: Ids, element: Any) -> tuple[Batch, int]:
            voxels, targets, lengths = (tensors.array(tensor) for tensor in element)
            size = framing_bytes(dataset, ids, lengths)
            cost(epoch).bytes_requested += size
            return Batch(ids, (Block.even(voxels), Block.even(targets))), size

        def explain(stretch: tensors.Stretch, message: str) -> BenchError:
            return failure_of_files(dataset, dict.fromkeys(dataset.locate(stretch.ids, ())[0].tolist()), message)

        with tensors.plan_batches(plan, build, take, explain) as batches:
            yield batches

    def close(self) -> None:
        """Nothing to end."""

    def _limits(self) -> Any:
        return tensors.limited(tensors.cores(), _INTRA_OP)

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
        "sc18 and original-64 go through the pipeline of MLPerf. Their own (NERSC/CosmoFlow) was of queues: "
        "string_input_producer, TFRecordReader, and shuffle_batch of 2 threads and 200 to 204 samples; that of "
        "original-64 also turned and mirrored cubes by chance.",
    ),
    start=Records,
    tensorflow=True,
)
