"""The made JPEG files: any size to the byte, decodable, incompressible."""

import io
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dlio_bench.benchmarks.imagenet import images
from dlio_bench.datagen import random_bytes


@given(size=st.integers(images.SMALLEST, 60_000), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_file_has_the_asked_size_and_decodes_to_the_declared_one(size: int, seed: int) -> None:
    content, width, height = images.make(random_bytes.source(seed, 0, 0), size)
    assert len(content) == size
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow warns of what libjpeg finds odd
        image = Image.open(io.BytesIO(content))
        pixels = np.asarray(image)
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (width, height))
    assert pixels.shape == (height, width, 3)
    assert pixels.std() > 0


@pytest.mark.parametrize("size", [8_291_099, 1_000_000, 114_660])
def test_large_files_decode(size: int) -> None:
    content, width, height = images.make(random_bytes.source(1, 2, 3), size)
    assert np.asarray(Image.open(io.BytesIO(content))).shape == (height, width, 3)


@pytest.mark.parametrize("size", [8_300, 74_000, 500_000])  # the first is the 1st percentile
def test_files_are_scan_data_that_cannot_be_compressed(size: int) -> None:
    content, width, height = images.make(random_bytes.source(1, 2, 3), size)
    assert 3 * width * height / size > 0.9  # a byte for each sample of each component
    assert len(zlib.compress(content, 6)) > 0.97 * size


def test_the_scan_needs_no_escapes() -> None:
    content = bytes(images.make(random_bytes.source(1, 2, 3), 100_000)[0])
    scan = content[content.index(b"\xff\xda") + 14 : -2]
    assert b"\xff" not in scan


def test_what_units_leave_over_fits_a_comment() -> None:
    for available in range(1, 45_000, 7):
        columns, rows = images.units(available)
        assert rows <= columns <= 2 * rows + 2
        assert 0 <= available - columns * rows < 300


def test_too_small_a_file_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="511 bytes"):
        images.make(random_bytes.source(1, 2, 3), 511)
