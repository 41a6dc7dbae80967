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

PUBLISHED_TILES = (130, 100, 240, 190, 192, 480, 121, 49, 130, 144, 121, 56)
SLIDES = 7983  # of 23 kinds of cancer: abstract of doi 10.3389/fonc.2021.806603
TILE = 1000  # pixels of a side at 20x: til_classification @c98db4c, save_svs_to_tiles.py
FIRST = 1  # x and y of the first tile
WIDTHS = (1000, 2000)  # pixels of a tile's side in the slide: int(1000 * mag / 20), for 20x and 40x
_KEY = 0x7769_7369  # of the drawing, the same for all datasets: sizes belong to the layout


class Place(NamedTuple):
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


def place(sample: int, *, tiny: bool, size: int) -> Place:
    """Where a tile of all slides lies in its own."""
    times = 1
    while sample >= firsts(tiny, times)[-1]:
        times *= 2
    starts = firsts(tiny, times)
    slide = int(np.searchsorted(starts, sample, side="right")) - 1
    number, tiles = sample - int(starts[slide]), int(starts[slide + 1] - starts[slide])
    column, row = divmod(number, isqrt(tiles - 1) + 1)
    width = WIDTHS[slide % len(WIDTHS)]
    return Place(FIRST + column * width, FIRST + row * width, width, size)
