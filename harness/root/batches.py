"""Batches of samples in memory, which readers and pipelines hand to trainers."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ids = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
ALIGNMENT = 64  # bytes: TensorFlow needs it of memory that it does not copy; a processor's cache line has this size


def validation_after(epoch: int) -> int:
    """The number, in plans and costs, of the validation pass after an epoch."""
    return ~epoch


def is_validation(epoch: int) -> bool:
    """Whether the number is that of a validation pass. Training epochs count from 0; passes are below 0."""
    return epoch < 0


class Block(Struct, frozen=True):
    """The bytes of several samples, one after the other: those of sample i are data[starts[i]:starts[i + 1]]."""

    data: Bytes
    starts: Ids  # int64 [samples + 1]

    @classmethod
    def even(cls, data: npt.NDArray[np.generic]) -> "Block":
        """A block of an array [samples, ...], whose samples have one size; no copy if it is contiguous."""
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        return cls(flat, np.linspace(0, flat.size, len(data) + 1).astype(np.int64))


class Batch(Struct, frozen=True):
    """The samples `ids`. A sample is its part of the first block, then its part of the next, and so on.

    Blocks lie in the reader's own buffers: they are valid until the next batch is asked for.
    """

    ids: Ids
    blocks: tuple[Block, ...]

    def sample(self, number: int) -> Bytes:
        """All bytes of the number-th sample; a copy where there are several blocks."""
        parts = [block.data[block.starts[number] : block.starts[number + 1]] for block in self.blocks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
