"""Images as TensorFlow's decode_image takes them: JPEG, PNG, GIF and BMP, whatever their name says, as RGB.

Equal to TensorFlow 2.18 within its JPEG decoder's rounding, CMYK and YCCK included; where the two differ: the palette
of a BMP, which TensorFlow passes over, is applied here.
"""

import io
from typing import Any

import numpy as np

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
        with _opened(content) as file:
            if file.mode == "CMYK" and _ADOBE not in file.info:  # Pillow takes all for inverted, TensorFlow the marked
                return ImageChops.invert(file).convert("RGB")
            if file.mode.startswith("I;16") or file.mode == "I":  # 16 bits: the upper 8, as TensorFlow asks libpng for
                return Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert("RGB")
            if "transparency" in file.info:  # dropped, and not blended
                return file.convert("RGBA").convert("RGB")
            return file.convert("RGB")
    except _failures() as error:
        raise _none(error) from error


def fault(content: bytes | memoryview) -> str | None:
    """Why an image cannot be decoded, in words; None where it can. A JPEG that has its end is not decoded for it."""
    try:
        if bytes(content[-2:]) != _JPEG_END:
            rgb(content)
            return None
        with _opened(content):
            return None
    except DataError as error:
        return str(error)
    except _failures() as error:
        return str(_none(error))


def record_fault(record: bytes | memoryview) -> str | None:
    """The same of the image in a tf.train.Example."""
    try:
        images: Any = example.decode(record).get("image/encoded")
    except DataError as error:
        return str(error)
    return fault(images[0]) if isinstance(images, list) and len(images) == 1 else "The record has no 'image/encoded'."


def _opened(content: bytes | memoryview) -> Any:
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


def _none(error: Exception) -> DataError:
    if type(error).__name__.startswith("DecompressionBomb"):
        return DataError(f"The image has too many pixels: at most {MOST_PIXELS} are decoded.")
    return DataError(f"The image is no JPEG, PNG, GIF or BMP that can be decoded: {error}.")
