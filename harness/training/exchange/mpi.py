"""Averages by MPI alone: fused buffers, polled non-blocking all-reduces, flat or by node."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.tensors import array
from dlio_bench.harness.cluster.comm import Comm, Floats
from dlio_bench.harness.training.exchange.options import ExchangeOptions, by_node, parts

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


Shapes = tuple[Shape, ...]


class OverMpi:
    """Averages over the ranks of `comm`, on communicators of its own. All ranks make it together.

    The means are float32 arrays, and views of buffers: valid until the next reduction of the same shapes with lag 0,
    the one after it with lag 1.
    """

    def __init__(self, comm: Comm, options: ExchangeOptions) -> None:
        self._options = options
        self._world = _part(comm, 0)
        self._node: Comm | None = None
        self._leaders: Comm | None = None
        self._leads: int | None = None
        self._nodes = by_node(options, comm.size)
        if self._nodes is not None:
            self._node = _part(comm, self._nodes.node_of(comm.rank))
            self._leads = self._nodes.part_led_by(comm.rank)
            self._leaders = comm.split(self._leads)
        self._buffers: dict[Shapes, list[Fused]] = {}  # a step may make several reductions, each of its own shapes

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], int]:
        """The means, in the gradients' shapes, and the bytes that were added up. TimeoutError; EnvironmentFailure."""
        arrays = [host_array(gradient) for gradient in gradients]
        fused = self._turn(tuple(array.shape for array in arrays))
        fused.pack(arrays)
        for piece in fused.pieces(self._options.buffer_bytes):
            self._sum(fused.values[piece], fused.sums[piece])
        return list(fused.means(self._world.size)), fused.values.nbytes

    def close(self) -> None:
        """Nothing is held that the end of MPI does not end."""

    def _turn(self, shapes: Shapes) -> Fused:
        """Buffers of these shapes by turns, so that with a lag the means in use are not written over."""
        buffers = self._buffers.setdefault(shapes, [])
        if len(buffers) <= self._options.lag:
            buffers.append(Fused(shapes, fp16=self._options.fp16))
        else:
            buffers.append(buffers.pop(0))
        return buffers[-1]

    def _sum(self, values: Floats, sums: Floats) -> None:
        """Kurth et al. (SC'18, doi:10.1109/SC.2018.00054, section on the hybrid all-reduce) for the way by node.

        There NCCL gives every rank of a node the whole sums before the leaders talk; here a leader gets those of its
        part, which are all that it needs.
        """
        seconds = self._options.timeout
        if self._node is None or self._nodes is None:
            self._world.all_sum(values, sums, seconds)
            return
        node = self._nodes.node_of(self._world.rank)
        first = self._nodes.ranks(node)[0]
        cut = parts(len(values), self._nodes.leaders)
        leaders = [self._nodes.leader_of_part(node, number) - first for number in range(self._nodes.leaders)]
        for leader, part in zip(leaders, cut, strict=True):
            self._node.sum_to_first(values[part], sums[part], seconds, first=leader)
        if self._leaders is not None and self._leads is not None:
            mine = cut[self._leads]
            values[mine] = sums[mine]
            self._leaders.all_sum(values[mine], sums[mine], seconds)
        for leader, part in zip(leaders, cut, strict=True):
            self._node.from_first(sums[part], seconds, first=leader)


def _part(comm: Comm, color: int) -> Comm:
    part = comm.split(color)
    assert part is not None  # it gave a color
    return part
