"""What ResNet-50's input makes of an image: decoded, cropped to 224 x 224, flipped or not, means subtracted."""

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.imagenet import images
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import example
from dlio_bench.errors import DataError

FIELDS = ("record",)
SIDE, COLOURS = 224, 3
MEANS = (123.68, 116.78, 103.94)  # of red, green, blue
# Random crops: area 5 % to 100 % of the image, sides 3:4 to 4:3. Both in units of 2^-16.
_ONE = 1 << 16
_LEAST_AREA = _ONE * 5 // 100
_LEAST_RATIO, _MOST_RATIO = _ONE * 3 // 4, _ONE * 4 // 3
_ATTEMPTS = 10  # ours; the published op tries 100 times, and takes the whole image then
_CENTRAL = (7, 8)  # of the shorter side: the 224 of 256 that evaluation takes
_CROP = 0x6372_6F70  # second word of the Philox key, the first is the sample's id
WHAT = (
    "image decoded, a crop drawn from the sample's id (validation: the central one) resized to 224x224x3, flipped by "
    "the id, float32 minus 123.68, 116.78, 103.94; int32 label (tensorflow/models, imagenet_preprocessing.py)"
)
Box = tuple[int, int, int, int]  # left, top, width, height


def decode(dataset: Dataset) -> Decode:
    """Delivers float32 [224, 224, 3] and an int32 label."""
    unpack = unpacker(dataset)
    training = dataset.training_samples
    means = np.array(MEANS, dtype=np.float32)
    pixels = SIDE * SIDE * COLOURS

    def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
        content, label = unpack(sample, parts[0])
        image, turned = picture(sample, content, training=sample < training)
        whole = np.frombuffer(out[: 4 * pixels], dtype="<f4").reshape(SIDE, SIDE, COLOURS)
        np.subtract(image[:, ::-1] if turned else image, means, out=whole)
        out[4 * pixels :].cast("i")[0] = label

    return Decode(FIELDS, 4 * (pixels + 1), apply, WHAT)


def picture(sample: int, content: memoryview, *, training: bool) -> tuple[npt.NDArray[np.uint8], bool]:
    """The crop of an image at 224 x 224, uint8 [224, 224, 3], and whether it is to be flipped. DataError."""
    from PIL import Image

    image = images.rgb(content)
    box, turned = crop(sample, *image.size) if training else (central(*image.size), False)
    left, top, width, height = box
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    return np.asarray(small), turned


def crop(sample: int, width: int, height: int) -> tuple[Box, bool]:
    """The crop of a training image, and whether it is flipped: from raw Philox words by integer operations only."""
    words: list[int] = np.random.Philox(key=np.array([sample, _CROP], np.uint64)).random_raw(1 + 4 * _ATTEMPTS).tolist()
    draws = [word >> 32 for word in words]
    for area, ratio, x, y in zip(*(draws[1 + place :: 4] for place in range(4)), strict=True):
        pixels = width * height * (_LEAST_AREA + ((_ONE - _LEAST_AREA) * area >> 32)) // _ONE
        aspect = _LEAST_RATIO + ((_MOST_RATIO - _LEAST_RATIO) * ratio >> 32)
        columns, rows = isqrt(pixels * aspect // _ONE), isqrt(pixels * _ONE // aspect)
        if 0 < columns <= width and 0 < rows <= height:
            place = (x * (width - columns + 1) >> 32, y * (height - rows + 1) >> 32)
            return (*place, columns, rows), bool(draws[0] >> 31)
    return central(width, height), bool(draws[0] >> 31)


def central(width: int, height: int) -> Box:
    """The square in the middle of an image."""
    part, whole = _CENTRAL
    edge = max(1, min(width, height) * part // whole)
    return (width - edge) // 2, (height - edge) // 2, edge, edge


def unpacker(dataset: Dataset) -> Callable[[int, memoryview], tuple[memoryview, int]]:
    """(id, record) -> JPEG and label: from the Example, or, of bare images, from the folder that names the class."""
    if dataset.manifest.container == "raw":
        labels = folder_labels(dataset)
        return lambda sample, record: (record, int(labels[sample]))
    return _from_example


def folder_labels(dataset: Dataset) -> npt.NDArray[np.int32]:
    """Label of every sample of bare images, int32 [samples]: the place of its folder's name among all, from 1 on."""
    names = [entry.name.split("/")[-2:-1] for entry in dataset.manifest.files]
    _, numbers = np.unique(np.array([name[0] if name else "" for name in names]), return_inverse=True)
    return np.asarray(numbers + 1, dtype=np.int32)


def _from_example(sample: int, record: memoryview) -> tuple[memoryview, int]:
    del sample
    features = example.decode(record)
    encoded: Any = features.get("image/encoded")
    labels = features.get("image/class/label")
    if not isinstance(encoded, list) or len(encoded) != 1:
        raise DataError("The record has no 'image/encoded'.")
    if not isinstance(labels, np.ndarray) or labels.size != 1:
        raise DataError("The record has no 'image/class/label'.")
    return encoded[0], int(labels[0])
