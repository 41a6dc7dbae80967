"""Many gradients as one contiguous array: one message instead of hundreds."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.tensors import array

Shape = tuple[int, ...]


class Fused:
    """Buffers for gradients of given shapes, made once: touching new memory costs more than adding it up.

    values: float32 or float16 [numbers], what travels. sums: the same, for what comes back.
    """

    def __init__(self, shapes: Sequence[Shape], *, fp16: bool) -> None:
        self._shapes = list(shapes)
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        self._cuts = list(pairwise(ends))
        kind = np.float16 if fp16 else np.float32
        self.values: npt.NDArray[Any] = np.zeros(ends[-1], kind)
        self.sums: npt.NDArray[Any] = np.zeros(ends[-1], kind)
        self._means: npt.NDArray[Any] = np.zeros(ends[-1], np.float32) if fp16 else self.sums

    def pack(self, gradients: Sequence[npt.NDArray[Any]]) -> None:
        """Copy them into `values`, converted; what float16 cannot hold becomes infinite."""
        with np.errstate(over="ignore"):
            for (begin, end), gradient in zip(self._cuts, gradients, strict=True):
                self.values[begin:end] = gradient.reshape(-1)

    def pieces(self, most: int) -> Iterator[slice]:
        """Cuts of `values` and `sums` of at most `most` bytes, wherever in a gradient they fall."""
        count = max(1, most // self.values.itemsize)
        return (slice(begin, begin + count) for begin in range(0, len(self.values), count))

    def means(self, ranks: int) -> list[npt.NDArray[np.float32]]:
        """`sums` by the number of ranks, in the gradients' shapes: views of the buffers, valid until the next pack."""
        np.divide(self.sums, np.float32(ranks), out=self._means, dtype=np.float32)
        return [
            self._means[begin:end].reshape(shape) for (begin, end), shape in zip(self._cuts, self._shapes, strict=True)
        ]


def host_array(gradient: Any) -> npt.NDArray[Any]:
    """A gradient in this process's memory: arrays as they are, a tensor without a copy where it is there already."""
    if isinstance(gradient, np.ndarray):
        return gradient
    if "GPU" in gradient.device:
        copied: npt.NDArray[Any] = gradient.numpy()
        return copied
    return array(gradient)
