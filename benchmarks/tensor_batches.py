"""Delivered batches as TensorFlow tensors that share the reader's memory, and the parts of their samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlio_bench.batches import ALIGNMENT, Batch, Block
from dlio_bench.benchmarks.model import Part, Tensor
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import DataError

WORD = 4  # bytes of a number


def lend(batch: Batch) -> tuple[Tensor, ...]:
    """The blocks of a batch as float32 [n, words] each, on the host.

    They share the batch's memory, and so are valid as long as it is: until the next batch is asked for. Memory that is
    read-only or does not start on 64 bytes cannot be shared and is copied (`shared` tells). DataError for samples
    that are not all of one size, or no whole numbers of four bytes.
    """
    return tuple(_lent(block, len(batch.ids)) for block in batch.blocks)


def shared(batch: Batch) -> bool:
    """Whether `lend` copies nothing of this batch."""
    return all(_can_share(block) for block in batch.blocks)


def unpacked(lent: Sequence[Tensor], parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """The parts of all samples, [n, *part.shape] each: a sample is its row of the first tensor, then of the next.

    TensorFlow operations. A part that is alone in its tensor, and the parts of a single sample, are views; others are
    copied once, as anything is that the network is to read in one piece. DataError when the sizes do not fit.
    """
    tf = tensorflow()
    widths = [int(tensor.shape[1]) for tensor in lent]
    if sum(widths) != sum(part.words for part in parts):
        raise DataError(
            f"Samples of {WORD * sum(widths)} bytes were delivered where {' + '.join(part.name for part in parts)} "
            f"have {WORD * sum(part.words for part in parts)}. Deliver decoded samples (--decode)."
        )
    parts_read, at, start = [], 0, 0
    for part in parts:
        if start == widths[at]:
            at, start = at + 1, 0
        if start + part.words > widths[at]:
            raise DataError(f"'{part.name}' is cut in two by the blocks of the batch, which a pipeline must not do.")
        flat = _columns(tf, lent[at], start, part.words)
        if part.dtype != "float32":
            flat = tf.bitcast(flat, part.dtype)
        parts_read.append(tf.reshape(flat, (-1, *part.shape)))
        start += part.words
    return tuple(parts_read)


def _columns(tf: Any, tensor: Tensor, start: int, words: int) -> Tensor:
    """`words` columns from `start` on, flat."""
    if words == tensor.shape[1]:
        return tensor
    if tensor.shape[0] == 1:
        return tf.reshape(tensor, (-1,))[start : start + words]  # a slice of the first axis shares memory
    return tensor[:, start : start + words]


def _lent(block: Block, samples: int) -> Tensor:
    tf = tensorflow()
    size, rest = divmod(block.data.size, samples)
    if rest or size % WORD or (np.diff(block.starts) != size).any():
        raise DataError("Samples of different sizes cannot be made one tensor. Deliver decoded samples (--decode).")
    numbers = block.data.view(np.float32).reshape(samples, size // WORD)
    if _can_share(block):
        return tf.experimental.dlpack.from_dlpack(numbers.__dlpack__())
    return tf.constant(numbers)


def _can_share(block: Block) -> bool:
    return bool(block.data.flags.writeable) and block.data.ctypes.data % ALIGNMENT == 0
