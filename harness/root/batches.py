"""Samples in memory, and what it took to get them there: what readers, pipelines and trainers hand to each other."""

from dataclasses import dataclass, fields

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


@dataclass
class Cost:
    """What reads have cost so far, seconds summed over threads.

    Bytes: `requested` of the dataset's file system; `ram`, `local`: read from tiers of the node, in its memory and on
    its node-local storage; `remote`: received from other ranks. `kept`: of those requested, what went into a tier and
    to nobody yet. `spared`: what the samples that came from tiers and other ranks would have had requested. So what a
    plan asks for, each of its samples once, is requested - kept + spared.
    `remote_misses`: samples that were to come from another rank, and did not.
    """

    requested: int = 0
    ram: int = 0
    local: int = 0
    remote: int = 0
    kept: int = 0
    spared: int = 0
    remote_misses: int = 0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, other: "Cost") -> None:
        """Add another's cost."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
