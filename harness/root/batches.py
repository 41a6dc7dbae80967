"""Samples in memory: what readers, pipelines and trainers hand to each other."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
ALIGNMENT = 64  # bytes: where TensorFlow wants its memory to start, and where a processor's cache lines do


def validation_after(epoch: int) -> int:
    """What stands for an epoch's number, in plans and their costs, in the validation pass behind that epoch."""
    return ~epoch


def is_validation(epoch: int) -> bool:
    """Whether the number stands for a validation pass. Training epochs count from 0; passes are below it."""
    return epoch < 0


@dataclass(frozen=True)
class Block:
    """Bytes of several samples one behind the other: those of sample i are data[starts[i]:starts[i + 1]]."""

    data: Bytes
    starts: Ids  # int64 [samples + 1]

    @classmethod
    def even(cls, data: npt.NDArray[np.generic]) -> "Block":
        """A block of an array [samples, ...] whose samples are all of one size; no copy where it is contiguous."""
        flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        return cls(flat, np.linspace(0, flat.size, len(data) + 1).astype(np.int64))


@dataclass(frozen=True)
class Batch:
    """The samples `ids`. A sample is its part of the first block, then its part of the next, and so on.

    Blocks lie in the reader's own buffers: they are valid until the next batch is asked for.
    """

    ids: Ids
    blocks: tuple[Block, ...]

    def sample(self, number: int) -> Bytes:
        """All bytes of the number-th sample; a copy where there are several blocks."""
        parts = [block.data[block.starts[number] : block.starts[number + 1]] for block in self.blocks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
