"""What a tile shows: white glass, stained tissue on it, dark nuclei in that. All of it is ours.

Stain, nuclei and their density imitate haematoxylin and eosin. One quarter in four of a tile is glass, and so are parts
of the others; some two thirds of the patches show tissue. Its shapes end at the tile's borders.
"""

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen import random_bytes

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
    here = _spread(random_bytes.octets(source, _GRID * _GRID).reshape(_GRID, _GRID) / 255, cells) > _TISSUE
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


def _spread(knots: npt.NDArray[np.float64], cells: int) -> npt.NDArray[np.float64]:
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
