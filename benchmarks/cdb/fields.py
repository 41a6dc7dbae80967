"""The weather of the `physical` fill: sixteen smooth fields a sample, from a pool of random modes.

Means, standard deviations and ranges are ESTIMATES from general climatology: the published ones are in a stats.h5 that
was never published. So are the shares of the variance that latitude takes, and the spectrum, which falls as k^-3 (such
fields compress by 1.1 to 1.26, as stored floats of a model do).

A process makes the modes once. A channel of a sample is then
    mean + sd (sqrt(share) profile(latitude) + sqrt(1 - share) envelope(latitude) (a mode_1 + b mode_2)),
a^2 + b^2 = 1, both modes turned in longitude. mode_1 is common to the channels of a group, so that moisture goes with
rain and pressure with height, as a network may learn.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.datagen import random_bytes

Plane = npt.NDArray[np.float32]

_MODES = 16
_KNEE = 2.0  # wave number, in waves around the shorter side, below which the spectrum is flat
_OWN = 0.5  # b: what a channel does not share with its group
_WOBBLE = 0.2  # radians by which a and b turn from sample to sample
_POOL = 1 << 20  # streams of the pool, beyond those of samples
_BLOCK = 1 << 16  # values: few enough for the processor's cache, several arrays at a time
_LOG_RAIN = 1.4  # standard deviation of the logarithm of PRECT
_SEA, _PLAINS = 101_000.0, 0.5  # Pa at sea level; land is where a mode is above so many standard deviations


class Channel(Struct, frozen=True):
    """One variable. `low` and `high` bound it; a logarithmic one is made as its logarithm."""

    name: str
    mean: float
    sd: float
    low: float
    high: float
    profile: str
    share: float  # of the variance, that latitude takes
    envelope: str
    group: str
    logarithmic: bool = False


_PRESSURE = ("highs", 0.3, "storms", "pressure")
_WARMTH = ("warm", 0.85, "storms", "warmth")
CHANNELS = (
    Channel("TMQ", 24, 16, 0, 80, "moist", 0.8, "moist", "moisture"),  # kg/m^2
    Channel("U850", 1.5, 8, -90, 90, "jets", 0.3, "storms", "zonal"),  # m/s
    Channel("V850", 0, 6, -90, 90, "jets", 0, "storms", "meridional"),
    Channel("UBOT", 0, 6, -90, 90, "jets", 0.3, "storms", "zonal"),
    Channel("VBOT", 0, 6, -90, 90, "jets", 0, "storms", "meridional"),
    Channel("QREFHT", 0.010, 0.006, 0, 0.03, "moist", 0.8, "moist", "moisture"),  # kg/kg
    Channel("PS", _SEA, 1400, 40_000, 108_000, *_PRESSURE),  # Pa; mountains make it 9.66e4 +- 9.4e3
    Channel("PSL", _SEA, 1400, 87_000, 108_000, *_PRESSURE),  # Pa
    Channel("T200", 217, 6, 180, 260, "warm", 0.3, "storms", "warmth"),  # K
    Channel("T500", 259, 13, 200, 310, *_WARMTH),
    Channel("PRECT", np.log(2.9e-8) - _LOG_RAIN**2 / 2, _LOG_RAIN, 0, 5e-6, "moist", 0.3, "even", "moisture", True),
    Channel("TS", 287, 16, 190, 350, *_WARMTH),
    Channel("TREFHT", 286, 16, 190, 350, *_WARMTH),
    Channel("Z1000", 100, 100, -1200, 800, *_PRESSURE),  # m
    Channel("Z200", 11_800, 500, 9_000, 14_000, *_WARMTH),
    Channel("ZBOT", 64, 4, 40, 90, *_WARMTH),
)
NUMBERS = {channel.name: number for number, channel in enumerate(CHANNELS)}
_GROUPS = tuple(dict.fromkeys(channel.group for channel in CHANNELS))


class Pool(Struct, frozen=True):
    """What the samples of one seed have in common, float32.

    modes: [16, rows, 2 columns], each twice side by side, so that any turn in longitude is a plain slice.
    offsets, scales: [16, rows, 1], of the formula above. mountains: Pa [rows, columns], 4400 +- 9300.
    """

    modes: Plane
    offsets: Plane
    scales: Plane
    mountains: Plane


class Term(Struct, frozen=True):
    """One mode's part in a channel."""

    mode: int
    column: int  # that comes first
    factor: float


Weather = tuple[tuple[Term, Term], ...]  # for each channel


@lru_cache(maxsize=2)
def pool(seed: int, rows: int, columns: int) -> Pool:
    """The pool of a seed: half a second and 120 MB at full size."""
    modes = np.empty((_MODES, rows, 2 * columns), np.float32)
    for number in range(_MODES):
        mode = _mode(random_bytes.source(seed, number, _POOL), rows, columns)
        modes[number, :, :columns] = modes[number, :, columns:] = mode
    height = np.maximum(_mode(random_bytes.source(seed, _MODES, _POOL), rows, columns) - np.float32(_PLAINS), 0)
    mountains = height * np.float32((_SEA - 9.66e4) / height.mean())
    latitude = np.radians((np.arange(rows) + 0.5) * 180 / rows - 90)
    profiles, envelopes = _profiles(latitude), _envelopes(latitude)
    offsets = [c.mean + c.sd * np.sqrt(c.share) * profiles[c.profile] for c in CHANNELS]
    scales = [c.sd * np.sqrt(1 - c.share) * envelopes[c.envelope] for c in CHANNELS]
    return Pool(modes, _columns(offsets), _columns(scales), mountains)


def weather(draw: np.random.Generator, columns: int) -> Weather:
    """The modes of one sample."""
    common = {group: (int(draw.integers(_MODES)), int(draw.integers(columns)), _sign(draw)) for group in _GROUPS}
    terms = []
    for channel in CHANNELS:
        mode, column, sign = common[channel.group]
        angle = np.arcsin(_OWN) + _WOBBLE * (draw.random() - 0.5)
        other_mode = (mode + 1 + int(draw.integers(_MODES - 1))) % _MODES
        second = Term(other_mode, int(draw.integers(columns)), float(np.sin(angle)) * _sign(draw))
        terms.append((Term(mode, column, float(np.cos(angle)) * sign), second))
    return tuple(terms)


def fill(pool: Pool, weather: Weather, number: int, out: Plane) -> None:
    """Write one channel, [rows, columns], before storms: of a logarithmic one the logarithm."""
    rows, columns = out.shape
    turned = [pool.modes[term.mode, :, term.column : term.column + columns] for term in weather[number]]
    factors = [pool.scales[number] * np.float32(term.factor) for term in weather[number]]
    step = max(1, _BLOCK // columns)
    spare = np.empty((step, columns), np.float32)
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        target, second = out[block], spare[: min(step, rows - start)]
        np.multiply(turned[0][block], factors[0][block], out=target)
        target += np.multiply(turned[1][block], factors[1][block], out=second)
        target += pool.offsets[number, block]
        if CHANNELS[number].name == "PS":
            target -= pool.mountains[block]


def _mode(source: np.random.SFC64, rows: int, columns: int) -> Plane:
    """A random field of mean 0 and variance 1, periodic, whose power a wave number falls as k^-3."""
    draw = np.random.Generator(source)
    waves = draw.standard_normal((rows, columns // 2 + 1, 2), dtype=np.float32).view(np.complex64)[..., 0]
    squares = np.square(np.fft.fftfreq(rows) * rows)[:, None] + np.square(np.fft.rfftfreq(columns) * rows)
    # amplitude k^-2, over rings of k waves: power k^-3
    waves *= (1 / (squares + _KNEE**2)).astype(np.float32)
    waves[0, 0] = 0
    field = np.fft.irfft2(waves, s=(rows, columns)).astype(np.float32)
    return np.asarray(field / field.std())


def _profiles(latitude: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
    """Shapes along latitude, of mean 0 and variance 1 over the rows."""
    shapes = {
        "moist": np.exp(-np.square(latitude / np.radians(33))),
        "warm": np.square(np.cos(latitude)),
        "jets": -np.cos(4 * latitude),  # westerlies at 45 degrees, easterlies at the equator
        "highs": -np.cos(6 * latitude),  # high pressure at 30 degrees
    }
    return {name: (shape - shape.mean()) / shape.std() for name, shape in shapes.items()}


def _envelopes(latitude: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
    """How much a sample varies along latitude, of mean square 1 over the rows."""
    shapes = {
        "even": np.ones_like(latitude),
        "moist": 0.1 + np.exp(-np.square(latitude / np.radians(33))),
        "storms": 0.5 + np.square(np.sin(latitude)),
    }
    return {name: shape / np.sqrt(np.mean(np.square(shape))) for name, shape in shapes.items()}


def _columns(values: list[npt.NDArray[np.float64]]) -> Plane:
    return np.array(values, dtype=np.float32)[..., None]


def _sign(draw: np.random.Generator) -> int:
    return 1 - 2 * int(draw.integers(2))
