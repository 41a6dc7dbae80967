"""ImageNet's files: TFRecord shards of about 1251 tf.train.Example records, or one JPEG file an image."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from msgspec import Struct

from dlio_bench.benchmarks.imagenet import images, jpeg, pictures
from dlio_bench.benchmarks.imagenet.labels import label_of, synset
from dlio_bench.benchmarks.imagenet.sizes import image_bytes
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, TRAIN, VALIDATION, Field, FileSpec, Layout, Split, Written

IMAGES = {TRAIN: 1_281_167, VALIDATION: 50_000}
SHARDS = {TRAIN: 1024, VALIDATION: 128}
THREADS = 8  # of the published conversion: it cuts the images into 8 ranges, and each of them into equal shards
TINY_SAMPLES, TINY_SHRINK = {TRAIN: 64, VALIDATION: 20}, 32
MEAN_IMAGE = 114_709  # bytes
MEAN_REST = 504  # bytes of a record's other features and its frame
# One image in eighty would be smaller; its JPEG tables, which are not scan data, would be more than a tenth of it.
LEAST_BYTES = 9_000
_TINY_IMAGE = {PHYSICAL: 3_998, RANDOM: 3_748}
SOURCE = (
    "tensorflow/models research/inception/inception/data/build_imagenet_data.py; sizes: argonne-lcf/dlio_benchmark, "
    "configs/workload/resnet50_*.yaml until 469dbe0"
)
SOURCE_RAW = (
    "the tar files of ILSVRC2012, validation sorted into folders as tensorflow/models research/inception/inception/"
    "data/preprocess_imagenet_validation_data.py does; sizes: argonne-lcf/dlio_benchmark, configs/workload/"
    "resnet50_*.yaml until 469dbe0"
)
_FIELDS = (Field("record", "|u1", (-1,)),)
_DRAWS = 8  # words of a record before its image


def layout(tiny: bool, fill: str) -> Layout:
    """Variant "tfrecord": train-00000-of-01024 and on, validation-00000-of-00128 and on."""
    mean = _TINY_IMAGE[fill] if tiny else MEAN_IMAGE
    splits = []
    for name, shards in SHARDS.items():
        samples = TINY_SAMPLES[name] if tiny else IMAGES[name] // shards
        splits.append(
            Split(
                name=name,
                full_files=shards,
                full_samples=shards * samples if tiny else IMAGES[name],
                samples_per_file=samples,
                file_bytes=samples * (mean + MEAN_REST),
                payload_bytes=mean,
                spec_files=partial(spec_files, split=name, tiny=tiny),
            )
        )
    return Layout(
        workload="imagenet",
        variant="tfrecord",
        container="tfrecord",
        fields=_FIELDS,
        splits=tuple(splits),
        source=SOURCE,
        tiny=tiny,
        fill=fill,
        write=partial(write, shrink=TINY_SHRINK if tiny else 1, fill=fill),
        auxiliary={},
        fault=images.record_fault,
    )


def raw_layout(tiny: bool, fill: str) -> Layout:
    """Variant "raw": a folder a class, a file an image; the same images as in the shards."""
    mean = _TINY_IMAGE[fill] if tiny else MEAN_IMAGE
    return Layout(
        workload="imagenet",
        variant="raw",
        container="raw",
        fields=_FIELDS,
        splits=tuple(
            Split(
                name=name,
                full_files=images,
                full_samples=images,
                samples_per_file=1,
                file_bytes=mean,
                payload_bytes=mean,
                spec_files=partial(raw_files, split=name),
            )
            for name, images in IMAGES.items()
        ),
        source=SOURCE_RAW,
        tiny=tiny,
        fill=fill,
        write=partial(write_raw, shrink=TINY_SHRINK if tiny else 1, fill=fill),
        auxiliary={},
        joint_files=joint_raw_files,
        fault=images.fault,
    )


def spec_files(files: int, *, split: str, tiny: bool) -> tuple[FileSpec, ...]:
    """The first `files` shards, each with its published number of records; beyond the published ones they repeat."""
    shards = SHARDS[split]
    named = shards * max(1, -(-files // shards))
    first = [n * TINY_SAMPLES[split] if tiny else _first_image(n, IMAGES[split], shards) for n in range(files + 1)]
    return tuple(
        FileSpec(f"{split}-{n:05d}-of-{named:05d}", first[n], first[n + 1] - first[n], split) for n in range(files)
    )


def joint_raw_files(counts: Sequence[int]) -> tuple[FileSpec, ...]:
    """So many training and validation images: a folder's name tells the class, which goes by the id in the dataset."""
    train, validation = counts
    return raw_files(train, split=TRAIN) + raw_files(validation, split=VALIDATION, first=train)


def raw_files(files: int, *, split: str, first: int = 0) -> tuple[FileSpec, ...]:
    """n01453764/n01453764_0.JPEG and on, or validation/n01453764/ILSVRC2012_val_00000001.JPEG and on."""
    specs = []
    for number in range(files):
        folder = synset(label_of(first + number))
        name = f"{folder}/{folder}_{number}.JPEG"
        if split == VALIDATION:
            name = f"{VALIDATION}/{folder}/ILSVRC2012_val_{number + 1:08d}.JPEG"
        specs.append(FileSpec(name, first + number, 1, split))
    return tuple(specs)


def write(path: Path, spec: FileSpec, seed: int, *, shrink: int, fill: str) -> Written:
    """One shard. OSError."""
    samples = range(spec.first, spec.first + spec.samples)
    return tfrecord.write(path, (record(seed, sample, shrink, fill) for sample in samples))


def write_raw(path: Path, spec: FileSpec, seed: int, *, shrink: int, fill: str) -> Written:
    """One image. OSError."""
    content = picture(seed, spec.first, shrink, fill).content
    path.write_bytes(content)
    return Written(
        extents=np.array([[[0, len(content), len(content)]]], dtype=np.int64),
        checksums=np.array([[crc32c(content)]], dtype=np.uint32),
    )


class Picture(Struct, frozen=True):
    """A JPEG, its size in pixels, its class, and random words for what is told of it besides."""

    content: bytes | memoryview
    width: int
    height: int
    label: int
    draws: tuple[int, ...]


def picture(seed: int, sample: int, shrink: int, fill: str) -> Picture:
    """The image of one sample, whichever variant holds it; a `shrink`th of the published size."""
    source = random_bytes.source(seed, sample, 0)
    draws = tuple(random_bytes.words(source, _DRAWS).tolist())
    label = label_of(sample)
    size = max(image_bytes(draws[0]), LEAST_BYTES) // shrink
    if fill == PHYSICAL:
        return Picture(*pictures.make(source, seed, sample, label, size), label, draws)
    return Picture(*jpeg.make(source, max(jpeg.SMALLEST, size)), label, draws)


def record(seed: int, sample: int, shrink: int, fill: str) -> list[Piece]:
    """The Example of one image, its feature list that of the Inception conversion, in pieces."""
    made = picture(seed, sample, shrink, fill)
    draws = made.draws
    corners = np.array([draws[2 + corner] % 512 + 512 * (corner % 2) for corner in range(4)]) / np.float32(1024)
    boxes = 1 if draws[6] >> 63 else 0  # ours: about half of the images are annotated
    return example.encode(
        {
            "image/height": _integer(made.height),
            "image/width": _integer(made.width),
            "image/colorspace": b"RGB",
            "image/channels": _integer(jpeg.COMPONENTS),
            "image/class/label": _integer(made.label),
            "image/class/synset": synset(made.label).encode(),
            "image/class/text": f"synthetic class {made.label}, {fill}".encode(),
            **{
                f"image/object/bbox/{name}": corners[corner : corner + boxes].astype(np.float32)
                for corner, name in enumerate(("xmin", "xmax", "ymin", "ymax"))
            },
            "image/object/bbox/label": np.full(boxes, made.label, dtype=np.int64),
            "image/format": b"JPEG",
            "image/filename": f"{synset(made.label)}_{sample}.JPEG".encode(),
            "image/encoded": made.content,
        }
    )


def _first_image(shard: int, images: int, shards: int) -> int:
    """First image of a shard: both of the conversion's `linspace(...).astype(int)`, in integers.

    Behind the last shard all images come once more.
    """
    before, shard = divmod(shard, shards)
    thread, part = divmod(shard, shards // THREADS)
    start, stop = (bound * images // THREADS for bound in (thread, thread + 1))
    return before * images + start + part * (stop - start) // (shards // THREADS)


def _integer(value: int) -> npt.NDArray[np.int64]:
    return np.array([value], dtype=np.int64)
