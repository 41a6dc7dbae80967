"""A delivered batch as NumPy arrays, one for each field, which share the reader's memory; and copies of such arrays."""

import sys
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.batches import Batch, Bytes
from dlio_bench.errors import unknown
from dlio_bench.harness.readers.session import SampleView, touch_buffer

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = dict[str, Any]  # field -> array [n, ...], or a list of n arrays where their lengths differ

VARYING = (-1,)
SPARE = 8  # buffers of a size that copies keep
_UNUSED = 2  # references to memory that nobody has a copy in: that of the kept buffer, and that of who counts them


class Column(Struct, frozen=True):
    """One array of a delivered sample. shape: of one sample; VARYING where the length differs from sample to sample."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of a sample, if its shape is fixed."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def split_batch(batch: Batch, columns: Sequence[Column], sample_view: SampleView) -> Arrays:
    """The batch's arrays, int64 [n] `ids` among them. They share its memory where samples are alike and in one block.

    Samples are their columns one after the other, as the reader delivers them.
    """
    if any(column.shape == VARYING for column in columns):
        return {**_varying(batch, columns, sample_view), "ids": batch.ids}
    row, samples = sum(column.bytes for column in columns), len(batch.ids)
    data = batch.blocks[0].data
    if len(batch.blocks) > 1:
        data = np.concatenate([batch.sample(number) for number in range(samples)])
    arrays: Arrays = {}
    start = 0
    for column in columns:
        strides = (row, *_strides(column))
        arrays[column.name] = np.ndarray((samples, *column.shape), column.dtype, data, start, strides)
        start += column.bytes
    arrays["ids"] = batch.ids
    return arrays


def _strides(column: Column) -> tuple[int, ...]:
    """Bytes from one element to the next along each axis of one sample."""
    steps = list(accumulate(reversed(column.shape[1:]), lambda step, length: step * length, initial=1))
    return tuple(column.dtype.itemsize * step for step in reversed(steps)) if column.shape else ()


def _varying(batch: Batch, columns: Sequence[Column], sample_view: SampleView) -> Arrays:
    lengths = sample_view.dataset.locate(batch.ids, sample_view.fields)[3].tolist()
    parts: dict[str, list[Array]] = {column.name: [] for column in columns}
    for number, sizes in enumerate(lengths):
        sample, start = batch.sample(number), 0
        for column, size in zip(columns, sizes, strict=True):
            part = sample[start : start + size].view(column.dtype)
            parts[column.name].append(part if column.shape == VARYING else part.reshape(column.shape))
            start += size
    return {
        column.name: parts[column.name] if column.shape == VARYING else np.stack(parts[column.name])
        for column in columns
    }


def leave_out(arrays: Arrays, skipped: Container[int]) -> Arrays:
    """The arrays without the samples of these ids: copies, where they have any of them."""
    kept = [row for row, sample in enumerate(arrays["ids"].tolist()) if sample not in skipped]
    if len(kept) == len(arrays["ids"]):
        return arrays
    return {
        name: [value[row] for row in kept] if isinstance(value, list) else value[kept] for name, value in arrays.items()
    }


def pick(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """All values by name as a dict; with names those of these as a tuple. UsageError."""
    for name in names:
        if name not in values:
            raise unknown("field", name, values)
    return tuple(values[name] for name in names) if names else dict(values)


class CopyPool:
    """Copies of arrays in memory that is used again once nobody has it any more: new pages cost more than a copy."""

    def __init__(self) -> None:
        self._buffers: list[Bytes] = []

    def copy_arrays(self, arrays: Mapping[str, Any]) -> Arrays:
        """The same arrays, each in one piece of memory of its own."""
        return {
            name: [part.copy() for part in value] if isinstance(value, list) else self._copy_array(value)
            for name, value in arrays.items()
        }

    def _copy_array(self, array: Array) -> Array:
        native = array.dtype.newbyteorder("=")  # the only one that TensorFlow and PyTorch know
        copy = self._free(array.nbytes)[: array.nbytes].view(native).reshape(array.shape)
        np.copyto(copy, array)
        return copy

    def _free(self, size: int) -> Bytes:
        """A buffer that nobody uses, of `size` bytes, which starts where TensorFlow needs no copy."""
        alike = 0
        for buffer in self._buffers:
            if buffer.nbytes == size:
                if sys.getrefcount(buffer.base) == _UNUSED:
                    return buffer
                alike += 1
        made = touch_buffer(size)
        if alike < SPARE:
            self._buffers.append(made)
        return made
