"""Files that are one record each, with nothing around it: a tree of JPEG images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c

from dlio_bench.datagen.layout import Extents, Field, Written


def write(path: Path, pieces: Sequence[bytes | bytearray | memoryview]) -> Written:
    """Write one record, given in pieces, as a whole file. OSError."""
    length = crc = 0
    with path.open("wb") as file:
        for piece in pieces:
            length += file.write(piece)
            crc = crc32c(piece, crc)
    return Written(np.array([[[0, length, length]]], dtype=np.int64), np.array([[crc]], dtype=np.uint32))


def locate(path: Path, fields: Sequence[Field]) -> Extents:
    """The whole file is the one field of its one sample: int64 [1, 1, 2]. OSError."""
    del fields  # nothing in the file speaks of them
    return np.array([[[0, path.stat().st_size]]], dtype=np.int64)
