"""What CDB makes of a climate image: four normalised channels, integer labels, a weight for every pixel."""

from collections.abc import Sequence
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import hdf5
from dlio_bench.errors import DataError

USED = (0, 1, 2, 10)  # TMQ, U850, V850, PRECT
FIELDS = (*(f"data[{channel}]" for channel in USED), "labels")
# Background, tropical cyclone, atmospheric river: mascarpone-tiramisu-tf-singlefile.py, which weighs a class by one
# over its frequency, and divides the weights by their sum.
FREQUENCIES = (0.982, 0.00071, 0.017)
WHAT = (
    "channels 0, 1, 2, 10 minus column 0 of stats.h5, over column 1 minus column 0; labels as int32; a float32 weight "
    "a pixel (NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn/semanticsegm/tiramisu-tf/tiramisu_helpers.py)"
)
DEFECT = (
    "Columns 0 and 1 of stats.h5 are taken for the minimum and the maximum, but they are the mean and the maximum: "
    "normalised values reach far below 0."
)
Plane = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int32]


class Normal(Struct, frozen=True, eq=False, dict=True):
    """What the channels in use are normalised by: (value - low) / span, each float32 [4]."""

    low: Plane
    span: Plane

    @cached_property
    def weights(self) -> Plane:
        """One a class, float32 [3]."""
        inverse = 1 / np.array(FREQUENCIES)
        return np.asarray(inverse / inverse.sum(), dtype=np.float32)

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
    path = dataset.folder / "stats.h5"
    stats = np.frombuffer(hdf5.read_field(path, "climate/stats"), dtype="<f4")
    if stats.size % 4 or stats.size // 4 <= max(USED):
        raise DataError(f"{path} holds {stats.size} numbers where four of each channel are expected. Restore the file.")
    low, high = stats.reshape(-1, 4)[list(USED), :2].T
    span = (high - low).astype(np.float32)
    if not (span > 0).all():
        raise DataError(f"{path} says that a channel's maximum is its mean: {high} and {low}. Restore the file.")
    return Normal(low.astype(np.float32), span)


def decode(dataset: Dataset) -> Decode:
    """Delivers float32 [4, rows, columns], int32 [rows, columns], float32 [rows, columns]. Reads stats.h5."""
    column = dataset.field_index(FIELDS)[0]
    pixels = prod(dataset.manifest.fields[column].shape)
    normalise = normal(dataset)
    plane, channels = 4 * pixels, len(USED)

    def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
        del sample
        for number, part in enumerate(parts[:channels]):
            target = np.frombuffer(out[number * plane : (number + 1) * plane], dtype="<f4")
            normalise.channel(number, np.frombuffer(part, dtype="<f4"), target)
        labels = np.frombuffer(out[channels * plane : (channels + 1) * plane], dtype="<i4")
        weights = np.frombuffer(out[(channels + 1) * plane :], dtype="<f4")
        normalise.classes(np.frombuffer(parts[channels], dtype="<f4"), labels, weights)

    return Decode(FIELDS, (channels + 2) * plane, apply, WHAT)
