"""GZIP TFRecords of one record put together from pieces that were compressed beforehand.

A deflate stream that is flushed fully (Z_FULL_FLUSH) ends on a whole byte and forgets what came before: such pieces
can be joined in any order, and any program unpacks the result. Only the checksums run over the bytes themselves.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c
from isal import isal_zlib
from msgspec import Struct

from dlio_bench.datagen.formats import tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import Written

# zlib's default, as TensorFlow's. ISA-L is thirty times as fast, and its files would be a quarter larger than those
# published.
LEVEL = 6
_RAW_WINDOW = -15  # zlib's wbits for the largest window, without header and trailer
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time, unknown system: RFC 1952


class Packed(Struct, frozen=True):
    """Bytes and what they were compressed to."""

    raw: memoryview
    deflated: bytes


def pack(raw: memoryview) -> Packed:
    """Compress one piece, so that it depends on no other."""
    return Packed(raw, _deflate(raw, zlib.Z_FULL_FLUSH))


def write(path: Path, before: Piece, pieces: Sequence[Packed], after: Piece) -> Written:
    """Write a file whose one record is `before`, the pieces and `after`; its stored extent is the file. OSError."""
    raws = [before, *(piece.raw for piece in pieces), after]
    length = sum(map(len, raws))
    start = tfrecord.head(length)
    crc, check = 0, isal_zlib.crc32(start)
    for raw in raws:
        crc = crc32c(raw, crc)
        check = isal_zlib.crc32(raw, check)
    end = tfrecord.tail(crc)
    size = len(start) + length + len(end)
    stored = b"".join(
        (
            _HEADER,
            _deflate(start + before, zlib.Z_FULL_FLUSH),
            *(piece.deflated for piece in pieces),
            _deflate(bytes(after) + end, zlib.Z_FINISH),
            struct.pack("<II", isal_zlib.crc32(end, check), size & 0xFFFFFFFF),
        )
    )
    with path.open("wb", buffering=0) as file:
        view = memoryview(stored)
        while view:  # a raw write may take a part only
            view = view[file.write(view) :]
    return Written(
        extents=np.array([[[0, len(stored), length]]], dtype=np.int64),
        checksums=np.array([[crc]], dtype=np.uint32),
    )


def _deflate(raw: Piece, end: int) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _RAW_WINDOW)
    return packer.compress(raw) + packer.flush(end)
