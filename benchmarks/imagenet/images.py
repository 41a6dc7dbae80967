"""Images as TensorFlow's decode_image takes them: JPEG, PNG, GIF and BMP, whatever their name says, as RGB.

Equal to TensorFlow 2.18 within its JPEG decoder's rounding, CMYK and YCCK included; where the two differ: the palette
of a BMP, which TensorFlow passes over, is applied here.
"""

import io
import math
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example
from dlio_bench.errors import DataError

KINDS = ("JPEG", "PNG", "GIF", "BMP")
# Pillow's own limit (Image.MAX_IMAGE_PIXELS, a quarter of a gigabyte of RGB), which it only warns of. A small file can
# hold far more pixels, and a rank has one image for each of its threads.
MOST_PIXELS = 89_478_485
_JPEG_END = b"\xff\xd9"
_ADOBE = "adobe"  # the marker of inverted inks, ITU-T T.872, 6.5.3


def rgb(content: bytes | memoryview) -> Any:
    """The image, or the first frame of it, as a Pillow image of mode RGB. DataError for what is none, or too large."""
    from PIL import Image, ImageChops

    try:
        with _open_image(content) as file:
            if file.mode == "CMYK" and _ADOBE not in file.info:  # Pillow takes all for inverted, TensorFlow the marked
                return ImageChops.invert(file).convert("RGB")
            if file.mode.startswith("I;16") or file.mode == "I":  # 16 bits: the upper 8, as TensorFlow asks libpng for
                return Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert("RGB")
            if "transparency" in file.info:  # dropped, and not blended
                return file.convert("RGBA").convert("RGB")
            return file.convert("RGB")
    except _failures() as error:
        raise _not_an_image(error) from error


def fault(content: bytes | memoryview) -> str | None:
    """Why an image cannot be decoded, in words; None where it can. A JPEG that has its end is not decoded for it."""
    try:
        if bytes(content[-2:]) != _JPEG_END:
            rgb(content)
            return None
        with _open_image(content):
            return None
    except DataError as error:
        return str(error)
    except _failures() as error:
        return str(_not_an_image(error))


def record_fault(record: bytes | memoryview) -> str | None:
    """The same of the image in a tf.train.Example."""
    try:
        images: Any = example.decode(record).get("image/encoded")
    except DataError as error:
        return str(error)
    return fault(images[0]) if isinstance(images, list) and len(images) == 1 else "The record has no 'image/encoded'."


def _open_image(content: bytes | memoryview) -> Any:
    """A Pillow image whose size is known and bounded, and whose pixels are not decoded yet."""
    from PIL import Image

    if not content:
        raise DataError("The image has no bytes.")
    file = Image.open(io.BytesIO(content), formats=KINDS)
    if file.width * file.height > MOST_PIXELS:
        file.close()
        raise DataError(f"The image has {file.width} x {file.height} pixels, and at most {MOST_PIXELS} are decoded.")
    return file


def _failures() -> tuple[type[Exception], ...]:
    """What Pillow makes of damaged images."""
    from PIL import Image

    known = (OSError, SyntaxError, ValueError, LookupError, TypeError, ArithmeticError, EOFError, MemoryError)
    return (*known, Image.DecompressionBombError, Warning)  # warnings, where somebody has made them errors


def _not_an_image(error: Exception) -> DataError:
    if type(error).__name__.startswith("DecompressionBomb"):
        return DataError(f"The image has too many pixels: at most {MOST_PIXELS} are decoded.")
    return DataError(f"The image is no JPEG, PNG, GIF or BMP that can be decoded: {error}.")


# Baseline JPEG files of any size, that decode and cannot be compressed, made as fast as random bytes.
#
# The Huffman tables are chosen so that every byte 0x00..0xFD is one complete token: a code of 8 - s bits, then s bits
# of magnitude, for s = 7..1. Any such bytes are then a valid scan, 64 of them make exactly one 8 x 8 block, and 0xFF,
# which would need an escape, never occurs. Source of the markers: ITU-T T.81, annexes B and F.

COMPONENTS = 3  # 4:4:4, so that a unit of 8 x 8 pixels is three blocks
UNIT = COMPONENTS * 64  # bytes of scan
SIDE = 8  # pixels
SMALLEST = 512  # bytes; room for the markers and one unit

_LARGEST_TOKEN = 0xFD
_SIZES = bytes(range(7, 0, -1))  # magnitude bits of the codes 0, 10, 110, ...: one code of each length 1..7
_END = b"\xff\xd9"


def segment(marker: int, content: bytes) -> bytes:
    """A marker segment of a JPEG file (ITU-T T.81, annex B.1.1.4)."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


_TABLE = bytes([1] * 7 + [0] * 9) + _SIZES  # as a DC table: categories; as an AC table: run 0, these sizes
_START = b"\xff\xd8" + segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
_TABLES = segment(0xDB, b"\0" + bytes([1] * 64)) + segment(0xC4, b"\0" + _TABLE + b"\x10" + _TABLE)
_FRAME = struct.pack(">B", 8), bytes([COMPONENTS, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])  # around height and width
_SCAN = segment(0xDA, bytes([COMPONENTS, 1, 0, 2, 0, 3, 0, 0, 63, 0]))
_COMMENT_HEAD = 4
_MARKERS = len(_START) + _COMMENT_HEAD + len(_TABLES) + 19 + len(_SCAN) + len(_END)  # 19: the frame header


def make(source: np.random.SFC64, size: int) -> tuple[memoryview, int, int]:
    """A JPEG of exactly `size` bytes: (bytes, width, height in pixels).

    A comment segment takes what whole units leave over. ValueError below SMALLEST bytes.
    """
    if size < SMALLEST:
        raise ValueError(f"a JPEG of {size} bytes has no room for its markers and one block")
    columns, rows = units((size - _MARKERS) // UNIT)
    width, height = SIDE * columns, SIDE * rows
    image = random_bytes.octets(source, size)
    np.minimum(image, _LARGEST_TOKEN, out=image)
    padding = size - _MARKERS - columns * rows * UNIT
    start = _START + struct.pack(">BBH", 0xFF, 0xFE, padding + 2)
    frame = segment(0xC0, _FRAME[0] + struct.pack(">HH", height, width) + _FRAME[1])
    middle = _TABLES + frame + _SCAN
    image[: len(start)] = np.frombuffer(start, dtype=np.uint8)
    behind = len(start) + padding
    image[behind : behind + len(middle)] = np.frombuffer(middle, dtype=np.uint8)
    image[-len(_END) :] = np.frombuffer(_END, dtype=np.uint8)
    return image.data, width, height


@lru_cache(maxsize=1 << 14)
def units(available: int) -> tuple[int, int]:
    """Columns and rows, between square and 2:1, that use the most of `available` units; near 4:3 where equal."""
    rows = np.arange(max(1, math.isqrt(available // 2)), math.isqrt(available) + 1)
    columns = available // rows
    best = int(np.lexsort((np.abs(3 * columns - 4 * rows), -columns * rows))[0])
    return int(columns[best]), int(rows[best])
