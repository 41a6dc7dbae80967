"""The trainer's check of what it is given: the ids are the plan's, and 64 bytes of every sample were really there.

A sample's mark is a weighted sum of 64 of its bytes at positions drawn from its id. Marks are taken inside the timed
loop, and compared afterwards with the marks of content that has passed its CRC32C.
"""

from collections.abc import Sequence

import crc32c
import numpy as np
import numpy.typing as npt

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError
from dlio_bench.harness.readers.session import Batch

PROBES = 64

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: multiplication by it permutes 64-bit words
_PROBE = np.arange(1, PROBES + 1, dtype=np.uint64) * _ODD


def marks(batch: Batch) -> npt.NDArray[np.uint64]:
    """One mark a sample, uint64 [batch], never 0: it depends on the id and on 64 bytes of the sample."""
    seeds = (batch.ids.astype(np.uint64) + np.uint64(1)) * _ODD
    draws = seeds[:, None] ^ _PROBE[None, :]
    draws ^= draws >> np.uint64(29)
    draws *= _ODD
    sizes = np.diff(batch.starts).astype(np.uint64)
    # the upper 32 bits scaled to the sample's length (integer only; samples are far below 4 GiB)
    positions = ((draws >> np.uint64(32)) * sizes[:, None]) >> np.uint64(32)
    found = batch.data[positions.astype(np.int64) + batch.starts[:-1, None]]
    total = ((found.astype(np.uint64) + np.uint64(1)) * (draws | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    result: npt.NDArray[np.uint64] = total | np.uint64(1)
    return result


def damaged(batch: Batch, dataset: Dataset, view: Sequence[str]) -> list[str]:
    """Compare every field of every sample with its CRC32C of generation; a line for each that differs."""
    files, _, _, delivered = dataset.locate(batch.ids, view)
    expected = dataset.checksums(batch.ids, view)
    lines = []
    for i, sample in enumerate(batch.ids.tolist()):
        at = int(batch.starts[i])
        for j, name in enumerate(view):
            end = at + int(delivered[i, j])
            found = crc32c.crc32c(batch.data[at:end])
            if found != expected[i, j]:
                path = dataset.path(int(files[i]))
                lines.append(
                    f"{path}: sample {sample}, field {name}: CRC32C {found:08x}, generated {expected[i, j]:08x}"
                )
            at = end
    return lines


def require_planned(batch: Batch, ids: npt.NDArray[np.int64]) -> None:
    """DataError when a reader hands out something else than its plan."""
    if not np.array_equal(batch.ids, ids):
        raise DataError(
            f"The reader delivered samples {batch.ids[:4]}... where the plan says {ids[:4]}...: a defect of it."
        )
