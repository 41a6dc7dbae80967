"""The tf.train.Example message, read and written without TensorFlow.

Written by hand from tensorflow/core/example/{example,feature}.proto, with no descriptor registered anywhere, so that
`import tensorflow` still works afterwards:

    Example   { Features features = 1 }
    Features  { map<string, Feature> feature = 1 }    an entry is a message { string key = 1, Feature value = 2 }
    Feature   { BytesList = 1 | FloatList = 2 | Int64List = 3 }
    BytesList { repeated bytes value = 1 }
    FloatList { packed float value = 1 }
    Int64List { packed int64 value = 1 }
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.errors import DataError

Numbers = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Feature = Piece | Sequence[Piece] | Numbers
Decoded = list[memoryview] | Numbers

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # field numbers in Feature
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_VARINT_BYTES = 10  # of a 64-bit number, at most
_CONTINUES = 0x80
_OCTETS = tuple(bytes([number]) for number in range(_CONTINUES))
_TAGS = {number: bytes([number << 3 | _LENGTH]) for number in (1, 2, 3)}
_LARGE = 1 << 12  # bytes: pieces from this size on are passed on, not copied


def encode(features: Mapping[str, Feature]) -> list[Piece]:
    """The message as pieces to be written one behind the other; large values are passed on, not copied.

    bytes or memoryview -> bytes list of one; sequence of these -> bytes list; float32 array -> float list;
    int64 array -> int64 list. Entries stay in the order given. TypeError for anything else.
    """
    entries: list[Piece] = []
    for name, value in features.items():
        number, body = _list(value)
        entries += _field(1, [_key(name), *_field(2, _field(number, body))])
    return _join_pieces(_field(1, entries))


def decode(message: Piece) -> dict[str, Decoded]:
    """name -> list of memoryviews, float32 array or int64 array; bytes and packed floats are views of `message`.

    DataError when the message is malformed.
    """
    features: dict[str, Decoded] = {}
    for body in _messages(memoryview(message), 1):
        for entry in _messages(body, 1):
            key = b"".join(_messages(entry, 1))
            value = list(_messages(entry, 2))
            try:
                features[key.decode()] = _decode_feature(value[-1]) if value else []
            except UnicodeDecodeError as error:
                raise _malformed_error("a feature's name is not text") from error
    return features


def _list(value: Feature) -> tuple[int, list[Piece]]:
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32:
            return _FLOATS, _pack_bytes(value.astype("<f4", copy=False).tobytes())
        if value.dtype == np.int64:
            return _INTEGERS, _pack_bytes(b"".join(_varint(number) for number in value.tolist()))
        raise TypeError(f"a feature of {value.dtype} has no list type; use float32, int64 or bytes")
    values = [value] if isinstance(value, (bytes, bytearray, memoryview)) else value
    return _BYTES, [piece for one in values for piece in _field(1, [one])]


def _pack_bytes(content: bytes) -> list[Piece]:
    return _field(1, [content]) if content else []


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    return b"".join(_field(1, [name.encode()]))


def _field(number: int, pieces: list[Piece]) -> list[Piece]:
    """A length-delimited field, in one piece unless it is large."""
    length = sum(map(len, pieces))
    start = _TAGS[number] + _varint(length)
    return [start, *pieces] if length >= _LARGE else [b"".join((start, *pieces))]


def _varint(number: int) -> bytes:
    if 0 <= number < _CONTINUES:
        return _OCTETS[number]
    number &= (1 << 64) - 1  # a negative number is its two's complement
    out = bytearray()
    while number >= _CONTINUES:
        out.append(number & 0x7F | _CONTINUES)
        number >>= 7
    out.append(number)
    return bytes(out)


def _join_pieces(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring small pieces as one: a record is then a few writes."""
    joined: list[Piece] = []
    small = bytearray()
    for piece in pieces:
        if len(piece) < _LARGE:
            small += piece
            continue
        if small:
            joined.append(bytes(small))
            small.clear()
        joined.append(piece)
    return [*joined, bytes(small)] if small else joined


def _decode_feature(feature: memoryview) -> Decoded:
    values: Decoded = []
    for number, _, body in _fields(feature):
        if number == _BYTES:
            values = list(_messages(_view(body), 1))
        elif number == _FLOATS:
            values = _floats(_view(body))
        elif number == _INTEGERS:
            values = _integers(_view(body))
    return values


def _floats(body: memoryview) -> npt.NDArray[np.float32]:
    parts = []
    for number, wire, value in _fields(body):
        if number != 1:
            continue
        if wire not in (_LENGTH, _FIXED32) or len(_view(value)) % 4:
            raise _malformed_error("a float list is not made of 4-byte numbers")
        parts.append(np.frombuffer(_view(value), dtype="<f4"))
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype="<f4"), *parts])


def _integers(body: memoryview) -> npt.NDArray[np.int64]:
    numbers: list[int] = []
    for number, wire, value in _fields(body):
        if number != 1:
            continue
        if wire == _VARINT and isinstance(value, int):
            numbers.append(value)
        elif wire == _LENGTH:
            at, packed = 0, _view(value)
            while at < len(packed):
                integer, at = _read_varint(packed, at)
                numbers.append(integer)
        else:
            raise _malformed_error("an int64 list is not made of varints")
    return np.array(numbers, dtype=np.uint64).view(np.int64)


def _messages(body: memoryview, wanted: int) -> Iterator[memoryview]:
    """The length-delimited fields of that number."""
    for number, wire, value in _fields(body):
        if number == wanted:
            if wire != _LENGTH:
                raise _malformed_error(f"field {wanted} has wire type {wire}")
            yield _view(value)


def _fields(body: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """(field number, wire type, content) of each field; content is an int for varints, else a view."""
    at = 0
    while at < len(body):
        tag, at = _read_varint(body, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _read_varint(body, at)
            yield number, wire, value
            continue
        if wire == _LENGTH:
            length, at = _read_varint(body, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise _malformed_error(f"wire type {wire} at byte {at}")
        if at + length > len(body):
            raise _malformed_error(f"a field of {length} bytes where {len(body) - at} are left")
        yield number, wire, body[at : at + length]
        at += length


def _read_varint(body: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for place in range(_VARINT_BYTES):
        if at + place >= len(body):
            break
        octet = body[at + place]
        number |= (octet & 0x7F) << 7 * place
        if octet < _CONTINUES:
            return number & (1 << 64) - 1, at + place + 1
    raise _malformed_error("a number does not end")


def _view(value: memoryview | int | Any) -> memoryview:
    if not isinstance(value, memoryview):
        raise _malformed_error("a number where a message should be")
    return value


def _malformed_error(problem: str) -> DataError:
    return DataError(
        f"The record is not a tf.train.Example: {problem}. Restore its file, or generate the dataset anew."
    )
