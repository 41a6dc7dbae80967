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
    return (AFFINE, affine) if affine is not None else (TABLE, np.concatenate([file.extents for file in written]))


def locate(
    encoding: str, array: Extents, ids: Integers, rows: Integers, fields: Sequence[int]
) -> tuple[Integers, Integers, Integers]:
    """(offset, stored, delivered), each int64 [n, fields], of samples `ids`, which are number `rows` in their files."""
    if encoding == TABLE:
        rows_of_table = array[np.ix_(ids, np.asarray(fields, dtype=np.int64))]
        return rows_of_table[:, :, 0], rows_of_table[:, :, 1], rows_of_table[:, :, 2]
    first, step, length = (np.asarray(array[list(fields), column]) for column in range(3))
    stored = np.repeat(length[None], len(ids), axis=0)
    return first + rows[:, None] * step, stored, stored.copy()


def _affine(written: Sequence[Written]) -> Extents | None:
    extents = max((file.extents for file in written), key=len)  # any file: the longest knows the step
    step = extents[1, :, 0] - extents[0, :, 0] if len(extents) > 1 else np.zeros(extents.shape[1], dtype=np.int64)
    affine: Extents = np.stack([extents[0, :, 0], step, extents[0, :, 1]], axis=1)
    for file in written:
        rows = np.arange(len(file.extents))[:, None]
        regular = (file.extents[:, :, 0] == affine[:, 0] + rows * affine[:, 1]).all() and (
            file.extents[:, :, 1:] == affine[:, 2, None]
        ).all()
        if not regular:
            return None
    return affine
