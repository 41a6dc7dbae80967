"""What the climate codes make of an image: normalised channels, integer labels, a weight for every pixel."""

from collections.abc import Sequence
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import hdf5
from dlio_bench.errors import DataError

USED = (0, 1, 2, 10)  # TMQ, U850, V850, PRECT
ALL = tuple(range(16))
# Background, tropical cyclone, atmospheric river: mascarpone-tiramisu-tf-singlefile.py, which weighs a class by one
# over its frequency, and divides the weights by their sum.
FREQUENCIES = (0.982, 0.00071, 0.017)
SUMMIT_FREQUENCIES = (0.991, 0.0266, 0.13)  # the square roots of the true ones
DEEPCAM_FREQUENCIES = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
DEFECT = (
    "Columns 0 and 1 of stats.h5 are taken for the minimum and the maximum, but they are the mean and the maximum: "
    "normalised values reach far below 0."
)
Plane = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


class Code(Struct, frozen=True):
    """How one code reads its variant of the files.

    channels: that it uses. data, labels: datasets of a file; last: whether a pixel's channels lie side by side. whole:
    whether the file is read whole, whatever is used. low, high: what of stats.h5 is taken for a channel's minimum and
    maximum: columns of `stats`, or datasets. weights: of the classes. what: one line for people, with the source.
    """

    channels: tuple[int, ...]
    low: int | str
    high: int | str
    weights: tuple[float, ...]
    what: str
    labels: str = "labels"
    last: bool = False
    whole: bool = True

    @property
    def fields(self) -> tuple[str, ...]:
        """Of the dataset, that it reads: each channel for itself where a channel is contiguous."""
        return (*(("data",) if self.last else (f"data[{channel}]" for channel in self.channels)), self.labels)


CORI = Code(
    USED,
    low=0,
    high=1,
    weights=tuple(1 / share / sum(1 / share for share in FREQUENCIES) for share in FREQUENCIES),
    what="channels 0, 1, 2, 10 minus column 0 of stats.h5, over column 1 minus column 0; labels as int32; a float32 "
    "weight a pixel (NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn/semanticsegm/tiramisu-tf/tiramisu_helpers.py)",
)
SUMMIT = Code(
    ALL,
    low=2,
    high=1,
    weights=tuple(1 / share for share in SUMMIT_FREQUENCIES),
    what="16 channels minus their minimum in stats.h5, over maximum minus minimum; labels as int32; a float32 weight a "
    "pixel (azrael417/ClimDeepLearn @2b8ea11, semanticsegm)",
)
DEEPCAM = Code(
    ALL,
    low="minval",
    high="maxval",
    weights=tuple(share**-0.125 for share in DEEPCAM_FREQUENCIES),
    what="16 channels minus minval of stats.h5, over maxval minus minval, channels first; labels as int32; a float32 "
    "weight a pixel (mlcommons/hpc @2c627d4, deepcam/src/deepCam/data/cam_hdf5_dataset.py, train.py)",
    labels="labels_0",
    last=True,
    whole=False,
)
CODES = {"cori": CORI, "summit": SUMMIT, "deepcam": DEEPCAM}


class Normal(Struct, frozen=True, eq=False, dict=True):
    """What the channels in use are normalised by: (value - low) / span, each float32 [channels]."""

    low: Plane
    span: Plane
    code: Code

    @cached_property
    def weights(self) -> Plane:
        """One a class, float32 [3]."""
        return np.array(self.code.weights, dtype=np.float32)

    def channel(self, number: int, values: Plane, out: Plane) -> None:
        """Write one channel normalised; `number` counts those in use."""
        np.subtract(values, self.low[number], out=out)
        np.divide(out, self.span[number], out=out)

    def classes(self, stored: Plane, labels: Labels, weights: Plane) -> None:
        """Write labels and weights of all pixels. DataError for a label that is none of 0, 1 and 2."""
        if not (stored.min() >= 0 and stored.max() < len(FREQUENCIES)):  # so that NaN is refused as well
            raise DataError(f"The labels reach from {stored.min()} to {stored.max()}, and are 0, 1 and 2.")
        np.copyto(labels, stored, casting="unsafe")
        np.take(self.weights, labels, out=weights, mode="clip")


def normal(dataset: Dataset) -> Normal:
    """From the stats.h5 beside the data, as published: see DEFECT. DataError when it is absent or of another shape."""
    path, code = dataset.folder / "stats.h5", CODES[dataset.manifest.variant]
    low, high = (_of_channels(path, which)[list(code.channels)] for which in (code.low, code.high))
    span = (high - low).astype(np.float32)
    if not (span > 0).all():
        raise DataError(f"{path} says that a channel has no span: {high} minus {low}. Restore the file.")
    return Normal(low.astype(np.float32), span, code)


def _of_channels(path: Path, which: int | str) -> Plane:
    """A number of each of the 16 channels: a column of `stats`, or a dataset. DataError."""
    name, columns = ("stats", 4) if isinstance(which, int) else (which, 1)
    stats = np.frombuffer(hdf5.read_field(path, f"climate/{name}"), dtype="<f4")
    if stats.size != columns * len(ALL):
        raise DataError(
            f"{path} holds {stats.size} numbers in '{name}' where {columns} of each channel are expected. Restore it."
        )
    return stats.reshape(-1, columns)[:, which if isinstance(which, int) else 0]


def decode(dataset: Dataset) -> Decode:
    """Delivers float32 [channels, rows, columns], int32 [rows, columns], float32 [rows, columns]. Reads stats.h5."""
    normalise = normal(dataset)
    code = normalise.code
    plane, channels = 4 * prod(plane_of(dataset)), len(code.channels)

    def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
        del sample
        *stored, labelled = (np.frombuffer(part, dtype="<f4") for part in parts)
        images = list(stored[0].reshape(-1, len(ALL)).T[list(code.channels)]) if code.last else stored
        for number, values in enumerate(images):
            target = np.frombuffer(out[number * plane : (number + 1) * plane], dtype="<f4")
            normalise.channel(number, values, target)
        labels = np.frombuffer(out[channels * plane : (channels + 1) * plane], dtype="<i4")
        weights = np.frombuffer(out[(channels + 1) * plane :], dtype="<f4")
        normalise.classes(labelled, labels, weights)

    return Decode(code.fields, (channels + 2) * plane, apply, code.what)


def plane_of(dataset: Dataset) -> tuple[int, ...]:
    """Rows and columns of an image."""
    return dataset.manifest.fields[dataset.field_index([CODES[dataset.manifest.variant].labels])[0]].shape
