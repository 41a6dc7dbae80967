"""What the classifier's input makes of a tile: patches, and which of them show enough to be looked at.

Source: til_classification @c98db4c, u24_lymphocyte/prediction/lymphocyte/pred_by_external_model.py.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.benchmarks.wsi.layout import COLOURS, TILES
from dlio_bench.datagen.dataset import Dataset

Pixels = npt.NDArray[np.uint8]

PATCH, TINY_PATCH = 100, 50  # pixels of a side: 50 x 50 micrometres at 20x
LEAST_DEVIATION = 12.0  # of a patch that is no background: mean over the channels of their standard deviations
WHAT = (
    "a tile cut into patches of 100 x 100 pixels (tiny: 50 x 50), x by x and in each y by y; int32 flag of each, 1 "
    "where the mean over channels of the standard deviation is 12 or more; uint8 pixels of all (til_classification, "
    "pred_by_external_model.py)"
)


def side_of_patch(dataset: Dataset) -> int:
    """Pixels of a patch's side."""
    return TINY_PATCH if dataset.manifest.tiny else PATCH


def decode(dataset: Dataset) -> Decode:
    """Delivers int32 [patches] flags and uint8 [patches, side, side, 3]."""
    [shape] = [field.shape for field in dataset.manifest.fields if field.name == TILES]
    side = side_of_patch(dataset)
    count = (shape[0] // side) * (shape[1] // side)

    def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
        del sample
        patches = np.frombuffer(out[4 * count :], np.uint8).reshape(count, side, side, COLOURS)
        patches_of(np.frombuffer(parts[0], np.uint8).reshape(shape), side, patches)
        np.frombuffer(out[: 4 * count], np.int32)[:] = shows_tissue(patches)

    return Decode((TILES,), 4 * count + count * side * side * COLOURS, apply, WHAT)


def patches_of(tile: Pixels, side: int, out: Pixels) -> None:
    """The patches [patches, side, side, 3] of a tile [rows, columns, 3]: x outer, y inner."""
    rows, columns = tile.shape[0] // side, tile.shape[1] // side
    parts = tile.reshape(rows, side, columns, side, COLOURS).transpose(2, 0, 1, 3, 4)
    out.reshape(parts.shape)[:] = parts


def shows_tissue(patches: Pixels) -> npt.NDArray[np.bool_]:
    """Which patches [patches, side, side, 3] are no background: bool [patches]."""
    flat = patches.reshape(len(patches), -1, COLOURS)
    count = flat.shape[1]
    # sums of integers, so that every machine keeps the same patches
    first = flat.sum(axis=1, dtype=np.int64)
    second = np.einsum("pic,pic->pc", flat, flat, dtype=np.int64)
    deviations = np.sqrt(count * second - first**2) / count
    enough: npt.NDArray[np.bool_] = deviations.mean(axis=1) >= LEAST_DEVIATION
    return enough
