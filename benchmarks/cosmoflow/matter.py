"""The `physical` fill: counts of particles in a lognormal density field, whose parameters can be learned from it.

One Gaussian field g a sample, spectrum k (1 + k / 0.02)^-2.8 exp(-(k / 1.2)^2) with k in radians a voxel; each redshift
has the density exp(s g - s^2 / 2), scaled to its mean, and Poisson counts of it. The strengths s and the spectrum were
fitted to the published GZIP size (2.83 MB at zlib's level 6), and give 0.70, 0.64, 0.54 and 0.46 of empty voxels. They
are estimates: the simulations themselves were not at hand.

Making a field takes a third of a second, and compressing it one more. A process therefore makes a pool of planes once,
a grid of strengths by tilts, and each sample is an arrangement of them: runs of neighbouring planes from the cells
nearest to its parameters, in proportion. The fields are periodic, so that a run may start and turn anywhere.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.datagen import random_bytes

STRENGTHS = (1.85, 1.55, 1.10, 0.75)  # of redshifts 0, 0.5, 1.5 and 3
SPREAD = 0.082  # standard deviation of the strength's logarithm over samples: +- 71 kB of GZIP
RUNS = 8  # a sample's pieces of neighbouring planes
_LEVELS, _TILTS, _DEPTH = 4, 2, 24  # cells of the pool, and planes of each
_TILT = 0.6  # of the spectrum's exponent, at the ends of its range
_LARGEST = np.iinfo(np.int16).max
_POOL = 1 << 20  # streams of the pool, beyond those of samples

Counts = npt.NDArray[np.int16] | npt.NDArray[np.float32]


class Run(Struct, frozen=True):
    """Neighbouring planes of one cell of the pool, in the order of `planes`; the rest only where planes are copied."""

    level: int
    tilt: int
    planes: tuple[int, ...]
    roll: tuple[int, int]  # along the rows and columns of a plane
    flip: tuple[bool, bool]


@lru_cache(maxsize=2)
def pool(seed: int, side: int, mean: float, redshifts: int, dtype: str) -> Counts:
    """[strengths, tilts, planes, side, side, redshifts]: the planes that samples of this kind and seed are made of."""
    planes = np.empty((_LEVELS, _TILTS, _DEPTH, side, side, redshifts), dtype)
    for level in range(_LEVELS):
        for tilt in range(_TILTS):
            source = np.random.Generator(random_bytes.source(seed, level * _TILTS + tilt, _POOL))
            field = _gaussian(source, (_DEPTH, side, side), _TILT * (2 * tilt / (_TILTS - 1) - 1))
            strength = np.exp(SPREAD * np.sqrt(3) * (2 * level / (_LEVELS - 1) - 1))  # sqrt(3): of uniform numbers
            for redshift in range(redshifts):
                density = np.exp(STRENGTHS[redshift] * strength * field)
                density *= mean / density.mean()
                drawn = source.poisson(density)
                planes[level, tilt, ..., redshift] = np.minimum(drawn, _LARGEST, out=drawn)
    planes.flags.writeable = False
    return planes


def runs(source: np.random.SFC64, side: int, strength: float, tilt: float) -> tuple[Run, ...]:
    """The arrangement of one sample whose strength and tilt, each in [-1, 1], say which cells its planes are from."""
    draw = np.random.Generator(source)
    levels = _mixed(draw, strength, _LEVELS)
    tilts = _mixed(draw, tilt, _TILTS)
    chosen = []
    for level, slope in zip(levels, tilts, strict=True):
        start, step = int(draw.integers(_DEPTH)), 1 - 2 * int(draw.integers(2))
        roll, flip = draw.integers(side, size=2), draw.integers(2, size=2)
        planes = tuple((start + step * n) % _DEPTH for n in range(side // RUNS))
        chosen.append(Run(level, slope, planes, (int(roll[0]), int(roll[1])), (bool(flip[0]), bool(flip[1]))))
    return tuple(chosen)


def assemble(planes: Counts, arrangement: tuple[Run, ...], out: Counts) -> None:
    """Fill `out`, [side, side, side, redshifts], with the planes of a pool, rolled and flipped run by run."""
    place = 0
    for run in arrangement:
        cell = planes[run.level, run.tilt]
        (row, column), flips = run.roll, tuple(slice(None, None, -1 if flip else 1) for flip in run.flip)
        for plane in run.planes:
            turned, target = cell[plane][flips], out[place]
            for to_rows, from_rows in _halves(row):
                for to_columns, from_columns in _halves(column):
                    target[to_rows, to_columns] = turned[from_rows, from_columns]
            place += 1


def sequence(arrangement: tuple[Run, ...]) -> Iterator[int]:
    """Numbers of the planes in the pool, as they lie in it, for samples that are not rolled."""
    for run in arrangement:
        yield from ((run.level * _TILTS + run.tilt) * _DEPTH + plane for plane in run.planes)


def _mixed(draw: np.random.Generator, value: float, cells: int) -> list[int]:
    """A cell for each run: the two nearest to `value`, the upper one in proportion, in any order."""
    low, share = divmod((value + 1) / 2 * (cells - 1), 1)
    upper = int(share * RUNS + draw.random())  # rounded so that it is right on average
    chosen = np.full(RUNS, min(int(low), cells - 1))
    chosen[:upper] += 1
    return [int(cell) for cell in np.minimum(draw.permutation(chosen), cells - 1)]


def _halves(roll: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Of a rolled axis: where its two parts go, and where they come from."""
    return (slice(roll, None), slice(None, -roll or None)), (slice(None, roll), slice(-roll or 0, None if roll else 0))


def _gaussian(source: np.random.Generator, shape: tuple[int, ...], tilt: float) -> npt.NDArray[np.float32]:
    """A periodic field of mean 0 and variance 1, whose spectrum's exponent is changed by `tilt`."""
    waves = np.fft.rfftn(source.standard_normal(shape, dtype=np.float32), axes=range(len(shape)))
    frequencies = [np.fft.fftfreq(side) for side in shape[:-1]] + [np.fft.rfftfreq(shape[-1])]
    squares = sum(np.square(2 * np.pi * axis) for axis in np.meshgrid(*frequencies, indexing="ij", sparse=True))
    k = np.sqrt(squares)
    k.flat[0] = 1  # any number: the mean is removed
    waves *= np.sqrt(k ** (1 + tilt) * (1 + k / 0.02) ** -2.8 * np.exp(-np.square(k / 1.2)))
    waves.flat[0] = 0
    field = np.fft.irfftn(waves, s=shape, axes=range(len(shape))).astype(np.float32)
    return np.asarray(field / field.std())
