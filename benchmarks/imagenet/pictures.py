"""Baseline JPEG pictures of any size, joined from a pool of strips that were compressed beforehand.

A strip is one restart interval: 64 x 8 pixels, 4:4:4, whose decoding depends on nothing before it (ITU-T T.81, E.1.4).
Its 8 x 8 blocks are drawn as DCT coefficients whose amplitude falls with frequency, as in photographs (pink noise), so
that no picture has to be transformed. A palette is a colour and a texture; a class is an ordered choice of three
palettes, for the upper, middle and lower part of its pictures: 10^3 classes. Colours, textures and the shape of the
spectrum are ours.

The strips of a picture are drawn one by one, except the first four: these spell the sample's id, so that no two
pictures of a dataset are equal.
"""

import struct
from functools import cache, lru_cache
from math import cos, isqrt, pi, sin, sqrt
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.benchmarks.imagenet import strips
from dlio_bench.datagen import random_bytes

PALETTES, PARTS = 10, 3
CLASSES = PALETTES**PARTS
STRIPS = 1024  # of a palette: fewer would be found again by gzip, whose window is 32 KiB
WIDTH, HEIGHT = 8 * strips.BLOCKS, 8  # pixels of a strip
FEWEST = 4  # strips of a picture: they spell the id
CROPPED = 8  # pixels, at most 7 of which are left out at the right and at the bottom
_RESTARTS = [struct.pack(">BB", 0xFF, 0xD0 + number) for number in range(8)]  # RST0..RST7 in turn between strips
SCRAMBLE = 0x9E3779B97 | 1  # odd: a bijection of 40 bits


class Pool(Struct, frozen=True):
    """The strips of a seed."""

    pieces: tuple[bytes, ...]  # [PALETTES x STRIPS], without the marker that follows each
    lengths: npt.NDArray[np.int64]  # [PALETTES x STRIPS], bytes with marker
    means: npt.NDArray[np.float64]  # [PALETTES]


class Plan(Struct, frozen=True):
    """A picture before it is joined: its size in pixels and the number of each strip in the pool, in scan order."""

    width: int
    height: int
    strips: npt.NDArray[np.int64]


def make(source: np.random.SFC64, seed: int, sample: int, label: int, size: int) -> tuple[bytes, int, int]:
    """A JPEG of about `size` bytes of class `label` (1..1000): (bytes, width, height in pixels).

    Its size is right on average, and mostly within 1 %: whole rows of strips come near `size`, nothing is padded. Of
    less than FEWEST strips there are none. `source` gives the picture's own random words.
    """
    made = plan(source, seed, sample, label, size)
    count = made.strips.size
    pieces = [strips.END] * (2 * count + 1)
    pieces[0] = strips.head(made.width, made.height)
    pieces[1::2] = itemgetter(*made.strips.tolist())(pool(seed).pieces)
    pieces[2:-1:2] = (_RESTARTS * (count // len(_RESTARTS) + 1))[: count - 1]
    return b"".join(pieces), made.width, made.height


def plan(source: np.random.SFC64, seed: int, sample: int, label: int, size: int) -> Plan:
    """What `make` joins."""
    palettes = [(label - 1) // PALETTES**part % PALETTES for part in reversed(range(PARTS))]
    means = pool(seed).means
    words = random_bytes.words(source, 2)
    cuts = [int(words[0]) >> shift & 0xFF for shift in (0, 8)]
    # The upper and the lower part take a third of the rows each, more or less; the middle takes the rest.
    shares = [(256 + cut) / 1152 for cut in cuts]
    shares.insert(1, 1 - sum(shares))
    expected = sum(means[palette] * share for palette, share in zip(palettes, shares, strict=True))
    columns, rows = grid(max(FEWEST, round((size - strips.HEAD) / expected)))
    upper, lower = round(shares[0] * rows), round(shares[2] * rows)
    base = np.repeat(np.array(palettes) * STRIPS, np.array([upper, rows - upper - lower, lower]) * columns)
    drawn = random_bytes.integers(source, -(-columns * rows // 2)).view("<u2")[: columns * rows] % STRIPS
    spelt = sample * SCRAMBLE % STRIPS**FEWEST
    drawn[:FEWEST] = [spelt // STRIPS**place % STRIPS for place in range(FEWEST)]
    cropped = int(words[1]) % CROPPED, (int(words[1]) >> 8) % CROPPED
    return Plan(WIDTH * columns - cropped[0], HEIGHT * rows - cropped[1], base + drawn)


@lru_cache(maxsize=1 << 14)
def grid(wanted: int) -> tuple[int, int]:
    """Columns and rows of strips, near `wanted` of them in all, between square and 2:1 in pixels."""
    fewest = max(1, round(sqrt(wanted / 8)))
    choices = [(columns, round(wanted / columns)) for columns in range(fewest, max(fewest, isqrt(wanted // 4)) + 1)]
    return min(choices, key=lambda choice: abs(choice[0] * choice[1] - wanted))


def palette(number: int) -> tuple[tuple[float, float, float], float, float]:
    """Colour (Y, Cb, Cr less 128), contrast and slope of a palette: ten hues, three lightnesses, two textures."""
    hue = 2 * pi * number / PALETTES
    colour = (number % 3 - 1) * 35.0, 45 * cos(hue), 45 * sin(hue)
    return (colour, 36.0, 1.0) if number % 2 else (colour, 62.0, 1.4)


@cache
def pool(seed: int) -> Pool:
    """All strips, made once a process: about a second and 4 MB."""
    encoded = [strips.encoded(*palette(number), count=STRIPS, seed=seed, number=number) for number in range(PALETTES)]
    pieces = tuple(piece for of_palette in encoded for piece in of_palette)
    lengths = np.array([len(piece) + len(strips.END) for piece in pieces])
    return Pool(pieces, lengths, lengths.reshape(PALETTES, STRIPS).mean(axis=1))
