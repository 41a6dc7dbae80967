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
SHORTER = 256  # pixels that the shorter side of a validation image is resized to, before its centre is taken
_CROP = 0x6372_6F70  # second word of the Philox key, the first is the sample's id
WHAT = (
    "image decoded, a crop drawn from the sample's id resized to 224x224x3 and flipped by the id (validation: the "
    "centre of the image resized to 256), float32 minus 123.68, 116.78, 103.94; int32 label (tensorflow/models, "
    "imagenet_preprocessing.py)"
)
Box = tuple[int, int, int, int]  # left, top, width, height
Part = tuple[float, float, float, float]  # the same, which may begin and end within a pixel


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
    part: tuple[Part, bool] = crop(sample, *image.size) if training else (centre(*image.size), False)
    (left, top, width, height), turned = part
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
    return (0, 0, width, height), bool(draws[0] >> 31)  # as the published op does


def centre(width: int, height: int) -> Part:
    """The part of a validation image that is left when its shorter side is resized to 256 pixels and the middle 224 x
    224 of that are taken: to resize this part alone gives the same pixels.
    """
    shorter = min(width, height)
    columns, rows = width * SHORTER // shorter, height * SHORTER // shorter
    left, top = (columns - SIDE) // 2, (rows - SIDE) // 2
    return left * width / columns, top * height / rows, SIDE * width / columns, SIDE * height / rows


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
