"""Where every sample lies, as one array: small where all files are alike, a row for each sample where not."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen.layout import Extents, Written

AFFINE, TABLE = "affine", "table"
Integers = npt.NDArray[np.int64]


def encode(written: Sequence[Written]) -> tuple[str, Extents]:
    """The extents of all files, in order -> (encoding, array).

    "affine": int64 [fields, 3] = offset of a file's first sample, step from sample to sample, length; the same in
    every file, stored and delivered bytes equal. "table": int64 [samples, fields, 3] = offset, stored, delivered.
    """
    affine = _affine(written)
    return (AFFINE, affine) if affine is not None else (TABLE, np.concatenate([one.extents for one in written]))


def locate(
    encoding: str, array: Extents, ids: Integers, rows: Integers, fields: Sequence[int]
) -> tuple[Integers, Integers, Integers]:
    """(offset, stored, delivered), each int64 [n, fields], of samples `ids`, which are number `rows` in their files."""
    if encoding == TABLE:
        found = array[np.ix_(ids, np.asarray(fields, dtype=np.int64))]
        return found[:, :, 0], found[:, :, 1], found[:, :, 2]
    first, step, length = (np.asarray(array[list(fields), column]) for column in range(3))
    stored = np.repeat(length[None], len(ids), axis=0)
    return first + rows[:, None] * step, stored, stored.copy()


def _affine(written: Sequence[Written]) -> Extents | None:
    extents = max((one.extents for one in written), key=len)  # any file: the longest knows the step
    step = extents[1, :, 0] - extents[0, :, 0] if len(extents) > 1 else np.zeros(extents.shape[1], dtype=np.int64)
    found: Extents = np.stack([extents[0, :, 0], step, extents[0, :, 1]], axis=1)
    for one in written:
        rows = np.arange(len(one.extents))[:, None]
        regular = (one.extents[:, :, 0] == found[:, 0] + rows * found[:, 1]).all() and (
            one.extents[:, :, 1:] == found[:, 2, None]
        ).all()
        if not regular:
            return None
    return found
