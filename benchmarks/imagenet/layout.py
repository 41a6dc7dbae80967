"""ImageNet's files: TFRecord shards of about 1251 tf.train.Example records, or one JPEG file an image."""

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from msgspec import Struct

from dlio_bench.benchmarks.imagenet import images, pictures
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import (
    PHYSICAL,
    RANDOM,
    TRAIN,
    VALIDATION,
    Field,
    FileSpec,
    Integers,
    Layout,
    Split,
    WrittenFile,
    ids_in,
)

# Sizes of ImageNet's JPEG files: a lognormal distribution as integers, so that no machine draws another size.
#
# mu = 11.210 and sigma = 0.9375 give the published mean and standard deviation, 114 660 and 136 076 bytes (DLIO,
# configs/workload/resnet50_*.yaml before March 2024). The tables hold quantiles where the tail probability is 2^-(level
# + 1) * (1 - step / 16), level 0..20, step 0..7: dense where the distribution is, and fine enough in the tail, which is
# cut at one in four million. Between two entries the size is drawn evenly.

LEVELS, STEPS = 21, 8
_MASK = 2**63 - 1


def image_bytes(word: int) -> int:
    """A random 64-bit word -> bytes of one JPEG, 658 to 8 291 099."""
    quantiles = _UPPER if word >> 63 else _LOWER
    tail = word & _MASK
    level = min(63 - tail.bit_length(), LEVELS - 1)  # leading zeros: each has half the probability of the one before
    rest = tail << level + 1 & _MASK
    entry = STEPS * level + (rest >> 60)
    low, high = quantiles[entry], quantiles[entry + 1]
    return low + ((high - low) * (rest >> 28 & 0xFFFFFFFF) >> 32)


# fmt: off
_UPPER = (
    73_865, 79_500, 85_603, 92_261, 99_581, 107_700, 116_801, 127_126, 139_015, 145_689, 152_954, 160_911, 169_685,
    179_442, 190_397, 202_840, 217_174, 225_222, 233_980, 243_569, 254_139, 265_884, 279_061, 294_012, 311_215,
    320_863, 331_355, 342_831, 355_469, 369_498, 385_219, 403_033, 423_501, 434_968, 447_426, 461_040, 476_019,
    492_630, 511_221, 532_264, 556_408, 569_920, 584_589, 600_606, 618_213, 637_718, 659_529, 684_188, 712_448,
    728_248, 745_388, 764_090, 784_633, 807_372, 832_775, 861_467, 894_315, 912_664, 932_558, 954_251, 978_061,
    1_004_398, 1_033_796, 1_066_973, 1_104_919, 1_126_100, 1_149_052, 1_174_064, 1_201_501, 1_231_829, 1_265_659,
    1_303_808, 1_347_403, 1_371_722, 1_398_060, 1_426_747, 1_458_198, 1_492_944, 1_531_676, 1_575_323, 1_625_163,
    1_652_948, 1_683_028, 1_715_775, 1_751_660, 1_791_282, 1_835_425, 1_885_138, 1_941_866, 1_973_474, 2_007_679,
    2_044_901, 2_085_671, 2_130_665, 2_180_767, 2_237_159, 2_301_470, 2_337_285, 2_376_027, 2_418_172, 2_464_314,
    2_515_216, 2_571_868, 2_635_601, 2_708_241, 2_748_676, 2_792_402, 2_839_951, 2_891_992, 2_949_375, 3_013_216,
    3_085_000, 3_166_775, 3_212_276, 3_261_465, 3_314_937, 3_373_440, 3_437_927, 3_509_640, 3_590_241, 3_682_017,
    3_733_062, 3_788_230, 3_848_184, 3_913_757, 3_986_012, 4_066_335, 4_156_577, 4_259_284, 4_316_389, 4_378_089,
    4_445_125, 4_518_421, 4_599_160, 4_688_884, 4_789_650, 4_904_288, 4_968_005, 5_036_833, 5_111_593, 5_193_313,
    5_283_305, 5_383_279, 5_495_518, 5_623_158, 5_694_081, 5_770_675, 5_853_851, 5_944_746, 6_044_814, 6_155_950,
    6_280_678, 6_422_471, 6_501_234, 6_586_279, 6_678_609, 6_779_485, 6_890_513, 7_013_785, 7_152_092, 7_309_270,
    7_396_555, 7_490_782, 7_593_061, 7_704_780, 7_827_713, 7_964_167, 8_117_219, 8_291_099,
)
_LOWER = (
    73_865, 68_630, 63_737, 59_138, 54_791, 50_660, 46_713, 42_919, 39_248, 37_450, 35_671, 33_908, 32_154, 30_406,
    28_656, 26_899, 25_123, 24_225, 23_319, 22_401, 21_469, 20_521, 19_552, 18_557, 17_532, 17_004, 16_466, 15_915,
    15_349, 14_766, 14_164, 13_538, 12_883, 12_544, 12_194, 11_834, 11_462, 11_075, 10_673, 10_251, 9_806, 9_573,
    9_333, 9_084, 8_826, 8_556, 8_273, 7_975, 7_658, 7_492, 7_320, 7_141, 6_954, 6_758, 6_552, 6_333, 6_101, 5_978,
    5_851, 5_718, 5_578, 5_432, 5_278, 5_114, 4_938, 4_845, 4_748, 4_647, 4_541, 4_429, 4_311, 4_185, 4_049, 3_978,
    3_903, 3_824, 3_742, 3_655, 3_562, 3_463, 3_357, 3_301, 3_242, 3_180, 3_115, 3_046, 2_973, 2_894, 2_810, 2_765,
    2_718, 2_668, 2_616, 2_561, 2_502, 2_439, 2_371, 2_334, 2_296, 2_256, 2_214, 2_169, 2_121, 2_070, 2_015, 1_985,
    1_954, 1_921, 1_887, 1_850, 1_811, 1_769, 1_723, 1_699, 1_673, 1_646, 1_617, 1_587, 1_555, 1_520, 1_482, 1_462,
    1_440, 1_418, 1_394, 1_369, 1_342, 1_313, 1_281, 1_264, 1_246, 1_227, 1_208, 1_186, 1_164, 1_139, 1_113, 1_098,
    1_083, 1_067, 1_051, 1_033, 1_014, 993, 970, 958, 945, 932, 918, 903, 886, 869, 850, 839, 828, 817, 805, 792, 778,
    763, 746, 738, 728, 719, 708, 697, 685, 672, 658,
)
# fmt: on


# Classes of ImageNet's samples: evenly often, in random order, whatever the fill, the variant and the seed.
#
# They depend on the sample's id alone, since the folders of the raw files are named after them.

CLASSES = 1000
_STREAM = 2  # samples' own words are stream 0, those of the pool of strips stream 1


def label_of(sample: int) -> int:
    """1..1000. Of each thousand samples in turn, every class has one, in an order of its own."""
    block, place = divmod(sample, CLASSES)
    return int(_order(block)[place])


def labels(_seed: int, ids: Integers) -> Integers:
    """Of consecutive samples, whatever the seed."""
    first = int(ids[0]) // CLASSES
    of_all = np.concatenate([_order(block) for block in range(first, int(ids[-1]) // CLASSES + 1)])
    of_these: Integers = of_all[ids - first * CLASSES]
    return of_these


@lru_cache(maxsize=64)
def _order(block: int) -> npt.NDArray[np.int64]:
    words = random_bytes.words(random_bytes.source(0, block, _STREAM), CLASSES)
    return 1 + np.argsort(words, kind="stable")


def synset(label: int) -> str:
    """A class's name in the published form, n and eight digits; the numbers are ours."""
    return f"n{1_440_764 + 13_000 * label:08d}"


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
        labels=labels,
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


def write(path: Path, spec: FileSpec, seed: int, *, shrink: int, fill: str) -> WrittenFile:
    """One shard. OSError."""
    samples = ids_in(spec, seed, labels).tolist()
    return tfrecord.write(path, (record(seed, sample, shrink, fill) for sample in samples))


def write_raw(path: Path, spec: FileSpec, seed: int, *, shrink: int, fill: str) -> WrittenFile:
    """One image. OSError."""
    content = picture(seed, spec.first, shrink, fill).content
    path.write_bytes(content)
    return WrittenFile(
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
    return Picture(*images.make(source, max(images.SMALLEST, size)), label, draws)


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
            "image/channels": _integer(images.COMPONENTS),
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
