"""ImageNet's published inputs: TensorFlow's official one over shards, and the one of raw JPEG files.

Shards (container "tfrecord"): tensorflow/models, official ResNet imagenet_preprocessing.py:

    from_tensor_slices(files) -> shard -> shuffle(1024) -> interleave(TFRecordDataset, cycle_length=10, AUTOTUNE)
        -> prefetch(batch) -> shuffle(10000) -> repeat -> map(decode_and_crop, flip, means) -> batch
        -> prefetch(AUTOTUNE)

Validation goes without the two shuffles, and its map decodes the whole image, resizes its shorter side to 256 pixels
and takes the centre. TensorFlow shuffles, so that an epoch is the plan's as a multiset: records carry their ids. A plan
of ranks that share a file (fewer files than ranks) is delivered as well, each rank reading its part; upstream deals
whole files only.

Bare images (container "raw"): Chowdhury et al., ICPP'19: list -> shuffle buffer of 10 -> equal shards -> map of
tf.read_file and decoding with 4 calls. The plan has shuffled and dealt the names; map keeps their order.

Crop and flip are TensorFlow's own, drawn from the sample's id, so that they can be repeated. Bytes are counted when a
batch is delivered; what TensorFlow reads ahead is not known to the program, and neither are its seconds.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block, Ids, is_validation
from dlio_bench.benchmarks import tensors
from dlio_bench.benchmarks.imagenet.decode import COLOURS, FIELDS, MEANS, SHORTER, SIDE, folder_labels
from dlio_bench.benchmarks.pipeline import ANEW, CostOf, Decode, Plan, Upstream, failure_of_files
from dlio_bench.benchmarks.records import framing_bytes, interleave_files, paths, requested_bytes
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, DataError

FILE_BUFFER, CYCLE, SAMPLE_BUFFER = 1024, 10, 10_000
RAW_CALLS, RAW_INTER_OP = 4, 6
_INTRA_OP = 1
# imagenet_preprocessing.py: what of the image (or of the box in it) a crop must cover, and what it may be
_COVERED, _ASPECT, _AREA, _ATTEMPTS = 0.1, (0.75, 1.33), (0.05, 1.0), 100
_CORNERS = ("ymin", "xmin", "ymax", "xmax")  # of a box, in the order that TensorFlow takes them
_WHAT = (
    "JPEG decoded and cropped to 224x224x3, flipped (validation: resized to 256 and cropped in the middle), means "
    "subtracted; int32 label (TensorFlow's operations)"
)


class Images:
    """The pipeline: threads of TensorFlow, no processes."""

    processes: tuple[int, ...] = ()

    def __init__(self) -> None:
        """Load TensorFlow, before anything is timed. EnvironmentFailure where it is not installed."""
        self._tf = tensors.tensorflow()
        self.options = {"threads": tensors.cores(), "processes": 0, "raw_calls": RAW_CALLS, "raw_threads": RAW_INTER_OP}

    def decode(self, dataset: Dataset) -> Decode:
        """See Pipeline.decode: the same operations on one record."""
        stage = tensors.graph_of(self._stage(dataset))

        def many(ids: Sequence[int], samples: Sequence[Sequence[memoryview]]) -> Iterator[bytes]:
            elements = [(np.int64(sample), bytes(parts[0])) for sample, parts in zip(ids, samples, strict=True)]
            try:
                for image, label, _, _ in tensors.each(stage, elements, self._limits(dataset)):
                    yield tensors.array(image).tobytes() + tensors.array(label).tobytes()
            except self._tf.errors.OpError as error:
                raise DataError(f"TensorFlow cannot decode the image: {error.message} {ANEW}") from error

        def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
            out[:] = b"".join(many([sample], [parts]))

        return Decode(FIELDS, 4 * (SIDE * SIDE * COLOURS + 1), apply, _WHAT, many)

    def requested_bytes(self, dataset: Dataset, plan: Plan) -> dict[int, int]:
        """See Pipeline.requested_bytes."""
        return requested_bytes(dataset, plan)

    @contextmanager
    def batches(self, dataset: Dataset, plan: Plan, cost: CostOf) -> Iterator[Iterator[Batch]]:
        """See Pipeline.batches."""
        stage = self._stage(dataset)
        build = self._bare if _is_bare(dataset) else self._shards

        def take(epoch: int, ids: Ids, element: Any) -> tuple[Batch, int]:
            del ids
            images, labels, delivered, lengths = (tensors.array(tensor) for tensor in element)
            size = framing_bytes(dataset, delivered, lengths)
            cost(epoch).bytes_requested += size
            return Batch(delivered, (Block.even(images), Block.even(labels))), size

        def explain(stretch: tensors.Stretch, message: str) -> BenchError:
            return failure_of_files(dataset, dict.fromkeys(dataset.locate(stretch.ids, ())[0].tolist()), message)

        def dataset_of(stretch: tensors.Stretch) -> Any:
            return build(dataset, stretch, stage).with_options(self._limits(dataset))

        with tensors.plan_batches(plan, dataset_of, take, explain) as batches:
            yield batches

    def close(self) -> None:
        """Nothing to end."""

    def _shards(self, dataset: Dataset, stretch: tensors.Stretch, stage: Any) -> Any:
        auto = self._tf.data.AUTOTUNE
        # a stretch is all training or all validation, which is not shuffled
        files, items = (0, 0) if is_validation(stretch.batches[0][0]) else (FILE_BUFFER, SAMPLE_BUFFER)
        records = interleave_files(
            dataset, stretch.epochs, files=files, cycle=CYCLE, calls=auto, items=items, ahead=stretch.size
        )
        return records.map(tensors.plain(stage), num_parallel_calls=auto).batch(stretch.size).prefetch(auto)

    def _bare(self, dataset: Dataset, stretch: tensors.Stretch, stage: Any) -> Any:
        tf = self._tf
        names = tf.data.Dataset.from_tensor_slices((stretch.ids, paths(dataset, dataset.locate(stretch.ids, ())[0])))
        load = tensors.plain(lambda sample, path: stage(sample, tf.io.read_file(path)))
        return names.map(load, num_parallel_calls=RAW_CALLS).batch(stretch.size)

    def _limits(self, dataset: Dataset) -> Any:
        return tensors.thread_options(RAW_INTER_OP if _is_bare(dataset) else tensors.cores(), _INTRA_OP)

    def _stage(self, dataset: Dataset) -> Any:
        """(id, record) -> image float32 [224, 224, 3], label, id, bytes of the record."""
        tf = self._tf
        labels = tf.constant(folder_labels(dataset)) if _is_bare(dataset) else None
        training = dataset.training_samples

        def stage(sample: Any, record: Any) -> tuple[Any, Any, Any, Any]:
            if labels is None:
                content, label, boxes = _parse_example(tf, record)
            else:
                content, label, boxes = record, labels[sample], tf.zeros([1, 0, 4])
            image = tf.cond(
                sample < training, lambda: _distort_image(tf, content, boxes, sample), lambda: _crop_centre(tf, content)
            )
            image.set_shape((SIDE, SIDE, COLOURS))
            return image - tf.constant(MEANS), label, sample, tf.strings.length(record)

        return stage


def _parse_example(tf: Any, record: Any) -> tuple[Any, Any, Any]:
    """Encoded image, label, and boxes [1, boxes, 4] of an Example (imagenet_main.py, _parse_example_proto)."""
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        **{f"image/object/bbox/{name}": tf.io.VarLenFeature(tf.float32) for name in _CORNERS},
    }
    parsed = tf.io.parse_single_example(record, features)
    corners = [parsed[f"image/object/bbox/{name}"].values for name in _CORNERS]
    boxes = tf.expand_dims(tf.stack(corners, axis=1), 0)
    return parsed["image/encoded"], tf.cast(parsed["image/class/label"], tf.int32), boxes


def _distort_image(tf: Any, content: Any, boxes: Any, sample: Any) -> Any:
    """A training image: a random crop, flipped or not, resized (imagenet_preprocessing.py, _decode_crop_and_flip)."""
    seed = tf.stack([sample, tf.zeros_like(sample)])
    is_jpeg = tf.io.is_jpeg(content)

    def decode_image() -> Any:  # the few files that are no JPEG, whatever their names say
        return tf.io.decode_image(content, channels=COLOURS, expand_animations=False)

    start, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.cond(is_jpeg, lambda: tf.io.extract_jpeg_shape(content), lambda: tf.shape(decode_image())),
        boxes,
        seed,
        min_object_covered=_COVERED,
        aspect_ratio_range=_ASPECT,
        area_range=_AREA,
        max_attempts=_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([start[:2], size[:2]], axis=0)
    image = tf.cond(
        is_jpeg,
        lambda: tf.io.decode_and_crop_jpeg(content, window, channels=COLOURS),
        lambda: tf.slice(decode_image(), tf.concat([start[:2], [0]], axis=0), tf.concat([size[:2], [COLOURS]], axis=0)),
    )
    return _resize_image(tf, tf.image.stateless_random_flip_left_right(image, seed), (SIDE, SIDE))


def _crop_centre(tf: Any, content: Any) -> Any:
    """A validation image: its shorter side resized to 256, and the middle of that (_aspect_preserving_resize)."""
    image = tf.io.decode_image(content, channels=COLOURS, expand_animations=False)
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    whole = tf.cast(shape * (SHORTER / tf.reduce_min(shape)), tf.int32)
    start = tf.concat([(whole - SIDE) // 2, [0]], axis=0)
    return tf.slice(_resize_image(tf, image, whole), start, (SIDE, SIDE, COLOURS))


def _resize_image(tf: Any, image: Any, size: Any) -> Any:
    """As TensorFlow 1 did: pixels are taken at their corners, and none are averaged where many become one."""
    return tf.compat.v1.image.resize(image, size, method="bilinear", align_corners=False)


def _is_bare(dataset: Dataset) -> bool:
    return dataset.manifest.container == "raw"


UPSTREAM = Upstream(
    order="buffered-shuffle(10000)",
    orders=("buffered-shuffle(10000)", "buffered-shuffle", "sequential"),
    exactly_once=True,
    order_known=False,
    source="tensorflow/models, official ResNet imagenet_preprocessing.py",
    defects=("A record can only leave the buffer that its shard is in: samples are shuffled near their place alone.",),
    departures=(
        "Crop and flip are drawn from the sample's id, so that they can be checked: they are alike in each epoch, and "
        "drawn anew as published.",
        "What is left of an epoch and fills no batch is dropped. The published pipeline repeats before it cuts "
        "batches, so that a batch can hold samples of two epochs.",
        "Where ranks are more than files, each reads its part of a file; the published code deals whole files alone.",
        "Files and records are shuffled by TensorFlow with the epoch's number for a seed.",
        "--decode of other readers has a library of its own (Pillow), which averages pixels where many become one, "
        "heeds no boxes of the record, and tries 10 crops and not 100 before it takes the whole image.",
    ),
    start=Images,
    tensorflow=True,
)
UPSTREAM_RAW = replace(
    UPSTREAM,
    order="buffered-shuffle(10)",
    orders=("buffered-shuffle(10)", "buffered-shuffle", "sequential"),
    order_known=True,
    source="Chowdhury et al., I/O Characterization and Performance Evaluation of BeeGFS for Deep Learning, ICPP'19",
    departures=(
        "The paper tells of tf.read_file and tf.image.decode_image in a map of 4 calls, and not what follows: crop, "
        "flip, means and validation are those of the pipeline over shards, which decodes the crop alone.",
        *UPSTREAM.departures[:1],
        "Names are shuffled by the run's seed, and what is left of an epoch and fills no batch is dropped.",
    ),
    defects=("The list of images goes through a buffer of 10 names: an image stays near its place in the list.",),
)
