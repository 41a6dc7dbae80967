"""HDF5 files whose bytes lie where a plain read finds them: contiguous datasets, or one chunk without filters.

HDF5 lays the file out and tells the offsets. h5py is imported on first use: naming a layout must not cost it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.errors import DataError


def _h5py() -> Any:
    import h5py  # type: ignore[import-untyped]  # it has no stubs; late, for its 0.1 s

    return h5py


def allocate(path: Path, datasets: Sequence[tuple[str, str, tuple[int, ...]]]) -> dict[str, int]:
    """Create a file of contiguous root datasets (name, dtype, shape), in this order; name -> offset of its bytes.

    The contents are left for plain writes at these offsets. All properties stay HDF5's defaults (allocation late,
    no fill): writing one element is what allocates a contiguous dataset. OSError.
    """
    with _created(path, None) as file:
        for name, dtype, shape in datasets:
            dataset = file.create_dataset(name, shape, dtype)
            dataset[(0,) * len(shape)] = 0
        file.flush()  # before it, the offset of a small dataset is not settled
        return {name: file[name].id.get_offset() for name, _, _ in datasets}


def write_chunks(
    path: Path,
    group: str,
    datasets: Mapping[str, npt.NDArray[Any]],
    libver: tuple[str, str],
) -> dict[str, int]:
    """Create a file of datasets, each one unfiltered chunk, in this order, in `group`; name -> offset of its bytes.

    OSError.
    """
    offsets = {}
    with _created(path, libver) as file:
        folder = file.create_group(group)
        for name, values in datasets.items():
            dataset = folder.create_dataset(name, values.shape, values.dtype, chunks=values.shape)
            dataset.id.write_direct_chunk((0,) * values.ndim, np.ascontiguousarray(values))
            offsets[name] = dataset.id.get_chunk_info(0).byte_offset
    return offsets


@contextmanager
def _created(path: Path, libver: tuple[str, str] | None) -> Iterator[Any]:
    """A new file, not locked: it is nobody else's yet, and some file systems cannot lock."""
    try:
        with _h5py().File(path, "w", locking=False, libver=libver) as file:
            yield file
    except RuntimeError as error:  # what h5py makes of a full disk when it is met in closing
        found = re.search(r"errno = (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def read_field(path: Path, dataset: str, index: int | None = None) -> bytes:
    """The bytes of `dataset`, or of its part at `index` of the first axis, read through HDF5 itself.

    The slow way, which needs no extents. Raises DataError when the file or the dataset cannot be read so.
    """
    try:
        with _h5py().File(path, "r", locking=False) as file:
            values = file[dataset][()] if index is None else file[dataset][index]
    except (OSError, KeyError, IndexError, ValueError) as error:
        part = dataset if index is None else f"{dataset}[{index}]"
        raise DataError(
            f"{path}: '{part}' cannot be read through HDF5: {error} Restore the file, or generate the dataset anew."
        ) from error
    return bytes(np.asarray(values).tobytes())
