"""TFRecord files: framed records with masked CRC32C, plain or inside one GZIP stream.

A record is: length uint64, masked CRC of these 8 bytes uint32, payload, masked CRC of the payload uint32; all
little-endian. Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/lib/hash/crc32c.h (Mask).
"""

import gzip
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from isal import igzip_lib, isal_zlib

from dlio_bench.datagen.layout import Checksums, Extents, Field, WrittenFile
from dlio_bench.errors import DataError

Piece = bytes | bytearray | memoryview  # a record is given in pieces, so that large arrays are never copied
HEAD, TAIL = 12, 4

# Levels 1 and 2 give the same size on counts, and level 3 a larger one, more slowly. The compressed bytes may differ
# between processors (ISA-L has code of its own for each SIMD set); what they unpack to does not.
GZIP_LEVEL = 1
_GZIP = b"\x1f\x8b"  # how its files begin, RFC 1952
_GZIP_WINDOW = 31  # zlib's wbits for the largest window with a gzip header, which then holds no time
_SLAB = 1 << 18  # unpacked a piece at a time, so that it is copied out of the processor's cache
_BUFFER = 1 << 20
MOST_BYTES = 1 << 30  # of a record: the largest published one has 17 MB, and GZIP makes a gigabyte out of a megabyte
_IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # the stub names an instance


def mask_crc(crc: int) -> int:
    """A CRC as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def unmask_crcs(stored: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """CRCs of what `mask_crc` makes of them."""
    turned = stored - np.uint32(0xA282EAD8)  # modulo 2^32
    return (turned << np.uint32(15)) | (turned >> np.uint32(17))


def head(length: int) -> bytes:
    """The 12 bytes before a payload of `length` bytes."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", mask_crc(crc32c(packed)))


def tail(crc: int) -> bytes:
    """The 4 bytes behind a payload whose CRC32C is `crc`."""
    return struct.pack("<I", mask_crc(crc))


def write(path: Path, records: Iterable[Sequence[Piece]]) -> WrittenFile:
    """Write a plain TFRecord file; one field a sample, the payload. OSError."""
    extents, checksums = [], []
    offset = 0
    with path.open("wb", buffering=_BUFFER) as file:
        for pieces in records:
            length, crc = _measure(pieces)
            file.write(head(length))
            for piece in pieces:
                file.write(piece)
            file.write(tail(crc))
            extents.append((offset + HEAD, length, length))
            checksums.append(crc)
            offset += HEAD + length + TAIL
    return _file_contents(extents, checksums)


def write_gzip(path: Path, pieces: Sequence[Piece], level: int = GZIP_LEVEL) -> WrittenFile:
    """Write a GZIP TFRecord file of one record: its stored extent is the whole file. OSError."""
    length, crc = _measure(pieces)
    packer = isal_zlib.compressobj(level, isal_zlib.DEFLATED, _GZIP_WINDOW)
    stored = 0
    with path.open("wb") as file:
        for piece in (head(length), *pieces, tail(crc)):
            stored += file.write(packer.compress(piece))
        stored += file.write(packer.flush())
    return _file_contents([(0, stored, length)], [crc])


def decode_gzip(stored: memoryview, out: memoryview) -> None:
    """Unpack a GZIP TFRecord file of one record into `out`, which has the length of its payload.

    GZIP's own CRC covers the payload, and is checked. DataError.
    """
    unpacker = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    try:
        if unpacker.decompress(stored, HEAD) != head(len(out)):
            raise DataError(f"The record inside is not one of {len(out)} bytes.")
        at = 0
        while at < len(out):
            piece = unpacker.decompress(b"", min(_SLAB, len(out) - at))
            if not piece:
                raise DataError(f"The GZIP stream ends after {at} of {len(out)} bytes.")
            out[at : at + len(piece)] = piece
            at += len(piece)
        rest = unpacker.decompress(b"", TAIL + 1)
    except (_IsalError, EOFError) as error:
        raise DataError(f"The GZIP stream cannot be unpacked: {error}.") from error
    if len(rest) != TAIL or not unpacker.eof:
        raise DataError("The GZIP stream does not end with its first record.")


def index(path: Path) -> npt.NDArray[np.int64]:
    """Where the payloads of a plain file lie: int64 [records, 2] = offset, length. Reads the heads only. DataError."""
    extents = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = 0
        while offset < size:
            file.seek(offset)
            start = file.read(HEAD)
            if not offset and start.startswith(_GZIP):
                raise DataError(f"{path} is compressed by GZIP, and plain TFRecords are read here: gunzip unpacks it.")
            length = _length(start, path, offset)
            if offset + HEAD + length + TAIL > size:
                raise DataError(f"{path} ends inside the record at byte {offset}. {_ANEW}")
            extents.append((offset + HEAD, length))
            offset += HEAD + length + TAIL
    return np.array(extents, dtype=np.int64).reshape(-1, 2)


def locate(path: Path, fields: Sequence[Field]) -> Extents:
    """Where the records of a plain file lie: int64 [records, 1, 2] = offset, length. DataError, OSError."""
    del fields  # a record is one field
    return index(path)[:, None]


def checksums(path: Path, extents: Extents) -> Checksums:
    """The CRC32C that stands behind each record of a plain file, uint32 [samples, 1]. DataError, OSError."""
    stored = bytearray()
    with path.open("rb", buffering=0) as file:
        for end in extents[:, 0].sum(axis=1).tolist():
            stored += os.pread(file.fileno(), TAIL, end)
    if len(stored) != TAIL * len(extents):
        raise DataError(f"{path} ends inside a record. {_ANEW}")
    return unmask_crcs(np.frombuffer(stored, dtype="<u4").astype(np.uint32))[:, None]


def records(path: Path, *, compressed: bool = False) -> Iterator[bytes]:
    """The payloads of a file, one after the other, each checked against its CRC. DataError."""
    try:
        with gzip.open(path, "rb") if compressed else path.open("rb") as file:
            yield from _stream(file, path)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path}: the GZIP stream cannot be unpacked: {error}. {_ANEW}") from error


def measure_gzip(path: Path, fields: Sequence[Field]) -> WrittenFile:
    """The one record of a GZIP stream: its extent, which is the whole file, and its CRC32C. DataError; OSError."""
    del fields  # nothing in the file speaks of them
    with path.open("rb") as file:
        if (start := file.read(HEAD)) == head(int.from_bytes(start[:8], "little")):
            raise DataError(f"{path} holds plain TFRecords, and files that GZIP compressed are read here.")
    payloads = list(records(path, compressed=True))
    if len(payloads) != 1:
        raise DataError(f"{path} holds {len(payloads)} records in one GZIP stream: only a single one can be served.")
    return _file_contents([(0, path.stat().st_size, len(payloads[0]))], [crc32c(payloads[0])])


def _stream(file: IO[bytes] | gzip.GzipFile, path: Path) -> Iterator[bytes]:
    offset = 0
    while start := file.read(HEAD):
        length = _length(start, path, offset)
        payload, end = _pieces(file, length, path, offset), file.read(TAIL)
        if len(payload) < length or len(end) < TAIL:
            raise DataError(f"{path} ends inside the record at byte {offset}. {_ANEW}")
        if end != tail(crc32c(payload)):
            raise DataError(f"{path}: the record at byte {offset} does not match its CRC32C. {_ANEW}")
        yield payload
        offset += HEAD + length + TAIL


def _pieces(file: IO[bytes] | gzip.GzipFile, length: int, path: Path, offset: int) -> bytes:
    """`length` bytes, or fewer at the end of the file. Memory grows with what is read: a wrong length may be huge."""
    if length > MOST_BYTES:
        raise DataError(f"{path}: the record at byte {offset} has {length} bytes, and at most {MOST_BYTES} are read.")
    content = bytearray()
    while piece := file.read(min(_BUFFER, length - len(content))):
        content += piece
    return bytes(content)


def _length(start: bytes, path: Path, offset: int) -> int:
    length = int.from_bytes(start[:8], "little")
    if start != head(length):
        raise DataError(f"{path} has no TFRecord at byte {offset}: its length does not match its CRC32C. {_ANEW}")
    return length


def _measure(pieces: Sequence[Piece]) -> tuple[int, int]:
    length = crc = 0
    for piece in pieces:
        length += len(piece)
        crc = crc32c(piece, crc)
    return length, crc


def _file_contents(extents: list[tuple[int, int, int]], checksums: list[int]) -> WrittenFile:
    return WrittenFile(
        extents=np.array(extents, dtype=np.int64).reshape(-1, 1, 3),
        checksums=np.array(checksums, dtype=np.uint32).reshape(-1, 1),
    )


_ANEW = "Restore the file, or make it again in a new folder."
