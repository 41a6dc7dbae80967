"""How many tiles slides have, and where these lie in them.

Sizes are those of the twelve slides of https://github.com/anagainaru/medical_DNN @49b98c0, quip_classification/code/
README.md. Ours: beyond the first twelve they are drawn from these twelve; tiles fill a square, column by column; a
slide is scanned at 20x or at 40x.
"""

from functools import cache
from math import isqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen import random_bytes

# What a tile shows: white glass, stained tissue on it, dark nuclei in that. All of it is ours.
#
# Stain, nuclei and their density imitate haematoxylin and eosin. One quarter in four of a tile is glass, and so are
# parts of the others; some two thirds of the patches show tissue. Its shapes end at the tile's borders.

Pixels = npt.NDArray[np.uint8]

CELL = 10  # pixels of the square that tissue and nuclei are made of
_GRID = 6  # knots of the smooth field on a side, which says where tissue is
_TISSUE = 0.38  # least value of the field
_EMPTY = 64  # of 256 quarters of tiles
_GLASS, _STROMA, _NUCLEUS = (240, 238, 241), (226, 164, 196), (98, 62, 140)
_GLASS_BITS, _TISSUE_BITS = 5, 2  # of a random byte that are dropped: texture of 8 and of 64 levels


def tile(source: np.random.SFC64, side: int) -> Pixels:
    """uint8 [rows, columns, 3] of `side` pixels, a multiple of 2 x CELL."""
    cells = side // CELL
    texture = random_bytes.octets(source, side * side * 3).reshape(side, side, 3)
    here = _interpolate(random_bytes.octets(source, _GRID * _GRID).reshape(_GRID, _GRID) / 255, cells) > _TISSUE
    quarters = random_bytes.octets(source, 4).reshape(2, 2) >= _EMPTY
    here &= quarters.repeat(cells // 2, axis=0).repeat(cells // 2, axis=1)
    density = 32 + int(random_bytes.octets(source, 1)[0]) // 2  # of 256 cells
    nuclei = here & (random_bytes.octets(source, cells * cells).reshape(cells, cells) < density)
    glass = np.array(_GLASS, np.uint8) + (texture >> _GLASS_BITS)
    stroma = np.array(_STROMA, np.uint8) + (texture >> _TISSUE_BITS) - np.uint8(32)
    made: Pixels = np.where(_pixels(here)[..., None], stroma, glass)
    inside = _pixels(nuclei) & np.tile(_disc(), (cells, cells))
    made[inside] = np.array(_NUCLEUS, np.uint8) + (texture[inside] >> _TISSUE_BITS)
    return made


def _interpolate(knots: npt.NDArray[np.float64], cells: int) -> npt.NDArray[np.float64]:
    """Values between knots [k, k], linear along both axes, at the middles of [cells, cells]."""
    at = (np.arange(cells) + 0.5) / cells * (len(knots) - 1)
    low = at.astype(np.int64)
    share = at - low
    rows = knots[low] * (1 - share)[:, None] + knots[low + 1] * share[:, None]
    spread: npt.NDArray[np.float64] = rows[:, low] * (1 - share) + rows[:, low + 1] * share
    return spread


def _pixels(cells: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)


def _disc() -> npt.NDArray[np.bool_]:
    """bool [CELL, CELL]."""
    from_middle = np.arange(CELL) - (CELL - 1) / 2
    disc: npt.NDArray[np.bool_] = np.hypot(from_middle, from_middle[:, None]) < 0.42 * CELL
    return disc


PUBLISHED_TILES = (130, 100, 240, 190, 192, 480, 121, 49, 130, 144, 121, 56)
SLIDES = 7983  # of 23 kinds of cancer: abstract of doi 10.3389/fonc.2021.806603
TILE = 1000  # pixels of a side at 20x: til_classification @c98db4c, save_svs_to_tiles.py
FIRST = 1  # x and y of the first tile
WIDTHS = (1000, 2000)  # pixels of a tile's side in the slide: int(1000 * mag / 20), for 20x and 40x
_KEY = 0x7769_7369  # of the drawing, the same for all datasets: sizes belong to the layout


class TilePlace(NamedTuple):
    """Where a tile lies: pixels of the slide. A published tile has them in its name."""

    x: int
    y: int
    width: int
    size: int

    @property
    def name(self) -> str:
        """That of the published file."""
        return f"{self.x}_{self.y}_{self.width}_{self.size}.png"


@cache
def firsts(tiny: bool, times: int = 1) -> npt.NDArray[np.int64]:
    """The first tile of each slide, and the number of all tiles: int64 [slides + 1]. A tiny slide is one tile.

    times: how often there are as many slides as are published.
    """
    count = SLIDES * times
    counts = np.ones(count, np.int64)
    if not tiny:
        words = np.random.Philox(key=np.array([_KEY, 0], np.uint64)).random_raw(count)
        counts = np.array(PUBLISHED_TILES)[(words >> np.uint64(32)).astype(np.int64) * len(PUBLISHED_TILES) >> 32]
        counts[: len(PUBLISHED_TILES)] = PUBLISHED_TILES
    return np.concatenate(([0], np.cumsum(counts)))


def tile_place(sample: int, *, tiny: bool, size: int) -> TilePlace:
    """Where a tile of all slides lies in its own."""
    times = 1
    while sample >= firsts(tiny, times)[-1]:
        times *= 2
    starts = firsts(tiny, times)
    slide = int(np.searchsorted(starts, sample, side="right")) - 1
    number, tiles = sample - int(starts[slide]), int(starts[slide + 1] - starts[slide])
    column, row = divmod(number, isqrt(tiles - 1) + 1)
    width = WIDTHS[slide % len(WIDTHS)]
    return TilePlace(FIRST + column * width, FIRST + row * width, width, size)
