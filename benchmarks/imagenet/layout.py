"""ImageNet's training shards: about 1251 tf.train.Example records of one JPEG each in a TFRecord file."""

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.imagenet import jpeg
from dlio_bench.benchmarks.imagenet.sizes import image_bytes
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import TRAIN, Field, FileSpec, Layout, Split, Written
from dlio_bench.errors import UsageError

SHARDS, IMAGES, CLASSES = 1024, 1_281_167, 1000
THREADS = 8  # of the published conversion: it cuts the images into 8 ranges, and each of them into 128 shards
TINY_SAMPLES, TINY_SHRINK = 64, 32
MEAN_IMAGE, MEAN_REST = 114_681, 504  # bytes: of the JPEG, and of the other features with the record's frame
_TINY_RECORD = 4_107
SOURCE = (
    "tensorflow/models research/inception/inception/data/build_imagenet_data.py; sizes: argonne-lcf/dlio_benchmark, "
    "configs/workload/resnet50_*.yaml until 469dbe0"
)
_DRAWS = 8  # words of a record before its image


def layout(tiny: bool, fill: str) -> Layout:
    """Variant "tfrecord": train-00000-of-01024 and on."""
    samples = TINY_SAMPLES if tiny else IMAGES // SHARDS
    return Layout(
        workload="imagenet",
        variant="tfrecord",
        container="tfrecord",
        fields=(Field("record", "|u1", (-1,)),),
        splits=(
            Split(
                name=TRAIN,
                full_files=SHARDS,
                full_samples=IMAGES,
                samples_per_file=samples,
                file_bytes=samples * (_TINY_RECORD if tiny else MEAN_IMAGE + MEAN_REST),
                payload_bytes=_TINY_RECORD - MEAN_REST if tiny else MEAN_IMAGE,
                spec_files=partial(spec_files, tiny=tiny),
            ),
        ),
        source=SOURCE,
        tiny=tiny,
        fill=fill,
        write=partial(write, shrink=TINY_SHRINK if tiny else 1),
        auxiliary={},
    )


def spec_files(files: int, *, tiny: bool) -> tuple[FileSpec, ...]:
    """The first `files` shards, each with its published number of records. UsageError for more than there are."""
    if files > SHARDS:
        raise UsageError(
            f"ImageNet has {SHARDS} training shards, but {files} were asked for. Ask for at most {SHARDS}."
        )
    first = [number * TINY_SAMPLES if tiny else _first_image(number) for number in range(files + 1)]
    return tuple(
        FileSpec(f"train-{number:05d}-of-{SHARDS:05d}", first[number], first[number + 1] - first[number])
        for number in range(files)
    )


def write(path: Path, spec: FileSpec, seed: int, *, shrink: int) -> Written:
    """One shard. OSError."""
    samples = range(spec.first, spec.first + spec.samples)
    return tfrecord.write(path, (record(seed, sample, shrink) for sample in samples))


def record(seed: int, sample: int, shrink: int) -> list[Piece]:
    """The Example of one image, its feature list that of the Inception conversion, in pieces."""
    source = random_bytes.source(seed, sample, 0)
    draws = [int(word) for word in random_bytes.words(source, _DRAWS)]
    image, width, height = jpeg.make(source, max(jpeg.SMALLEST, image_bytes(draws[0]) // shrink))
    label = 1 + (draws[1] >> 32) * CLASSES // 2**32
    synset = f"n{1_440_764 + 13_000 * label:08d}"  # ours, in the published form
    corners = np.array([draws[2 + corner] % 512 + 512 * (corner % 2) for corner in range(4)]) / np.float32(1024)
    boxes = 1 if draws[6] >> 63 else 0  # ours: about half of the images are annotated
    return example.encode(
        {
            "image/height": _integer(height),
            "image/width": _integer(width),
            "image/colorspace": b"RGB",
            "image/channels": _integer(jpeg.COMPONENTS),
            "image/class/label": _integer(label),
            "image/class/synset": synset.encode(),
            "image/class/text": f"synthetic class {label}, random".encode(),
            **{
                f"image/object/bbox/{name}": corners[corner : corner + boxes].astype(np.float32)
                for corner, name in enumerate(("xmin", "xmax", "ymin", "ymax"))
            },
            "image/object/bbox/label": np.full(boxes, label, dtype=np.int64),
            "image/format": b"JPEG",
            "image/filename": f"{synset}_{sample}.JPEG".encode(),
            "image/encoded": image,
        }
    )


def _first_image(shard: int) -> int:
    """First image of a shard: both of the conversion's `linspace(...).astype(int)`, in integers."""
    shards = SHARDS // THREADS
    thread, part = divmod(shard, shards)
    start, stop = (bound * IMAGES // THREADS for bound in (thread, thread + 1))
    return start + part * (stop - start) // shards


def _integer(value: int) -> npt.NDArray[np.int64]:
    return np.array([value], dtype=np.int64)
