"""One CDB sample of the `physical` fill: fields, storms, masks, statistics and checksums in one pass a channel."""

import math

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from msgspec import Struct

from dlio_bench.benchmarks.cdb import fields
from dlio_bench.benchmarks.cdb.fields import CHANNELS, NUMBERS, Channel, Plane, Pool
from dlio_bench.datagen import random_bytes

# Extreme weather of the `physical` fill: tropical cyclones and atmospheric rivers, and the masks that follow them.
#
# Each is a patch added to the fields, and its mask is then found in the fields, as the published labels were. Sizes and
# strengths are estimates, counts are chosen for the published class frequencies, 0.00071 and 0.017.

CYCLONE, RIVER = 1, 2
_ROWS = 768  # of the grid that sizes are given for, in rows
_CYCLONES, _RIVERS = 2.75, 3.85  # a sample, on average
_CYCLONE_SHARE = 0.07  # of the box around a centre: above the 93rd percentile, as published
_RIVER_CORE, _RIVER_EDGE = 0.45, 0.15  # of the patch: as many pixels as the core has are marked, within the edge

# What one patch of strength 1 adds in its centre; PRECT in its logarithm. Winds are of the vortex, or along the river.
_CYCLONE_ADDS = {
    "PSL": -4500.0, "PS": -4500.0, "Z1000": -370.0, "Z200": 60.0, "T200": 5.0, "T500": 6.0, "TMQ": 25.0,
    "QREFHT": 0.004, "PRECT": 3.0,
}  # fmt: skip
_RIVER_ADDS = {"TMQ": 20.0, "QREFHT": 0.004, "PRECT": 2.0, "T500": 2.0}
_WINDS = {"U850": (0, 1.0), "V850": (1, 1.0), "UBOT": (0, 0.8), "VBOT": (1, 0.8)}  # axis, share
_CYCLONE_WIND, _RIVER_WIND = 40.0, 14.0  # m/s


class Storm(Struct, frozen=True):
    """A box of the grid, what it adds there to each channel (shape times factor), and the shape that its mask uses."""

    kind: int
    box: tuple[slice, slice]
    shape: Plane
    adds: dict[int, tuple[Plane, float]]


def draw_storms(draw: np.random.Generator, rows: int, columns: int) -> tuple[Storm, ...]:
    """The storms of one sample: rivers first, so that a cyclone's mask is over theirs."""
    scale = rows / _ROWS
    rivers = [_river(draw, rows, columns, scale) for _ in range(_count(draw, _RIVERS))]
    return (*rivers, *(_cyclone(draw, rows, columns, scale) for _ in range(_count(draw, _CYCLONES))))


def add_storms(storms: tuple[Storm, ...], number: int, field: Plane) -> None:
    """Add all storms to channel `number`."""
    for storm in storms:
        if number in storm.adds:
            shape, factor = storm.adds[number]
            field[storm.box] += shape * np.float32(factor)


def label_storms(storms: tuple[Storm, ...], pool: Pool, moisture: Plane, pressure: Plane) -> Plane:
    """0 background, 1 cyclone, 2 river, as floats [rows, columns], found in TMQ and PSL.

    A cyclone is the lowest pressure of its box, a river the most moisture, beyond what its latitude has, of its band.
    """
    kinds = np.zeros(moisture.shape, np.float32)
    for storm in storms:
        if storm.kind == CYCLONE:
            score = -pressure[storm.box]
            marked = score >= _threshold(score, max(1, round(_CYCLONE_SHARE * score.size)))
        else:
            within = storm.shape > _RIVER_EDGE
            climate = pool.offsets[NUMBERS["TMQ"], storm.box[0]]
            score = moisture[storm.box] - climate
            wanted = max(1, int(np.count_nonzero(storm.shape > _RIVER_CORE)))
            marked = within & (score >= _threshold(score[within], wanted))
        kinds[storm.box][marked] = storm.kind
    return kinds


def _cyclone(draw: np.random.Generator, rows: int, columns: int, scale: float) -> Storm:
    side = 1 if draw.random() < 0.5 else -1  # of the equator
    half = max(2, round(scale * draw.uniform(22, 34)))
    radius, strength = scale * draw.uniform(7, 10), draw.uniform(0.8, 1.3)
    box, up, right = _box(draw, rows, columns, half, side * draw.uniform(8, 30))
    core = np.exp(-(np.square(up) + np.square(right)) / np.float32(2 * radius**2)) * np.float32(strength)
    adds = {NUMBERS[name]: (core, factor) for name, factor in _CYCLONE_ADDS.items()}
    wind = _CYCLONE_WIND * np.exp(0.5) / radius  # so that it is greatest at the radius, and this there
    for name, (axis, share) in _WINDS.items():
        turning = core * (right if axis else -up)  # anticlockwise in the north
        adds[NUMBERS[name]] = (turning, side * share * wind)
    return Storm(CYCLONE, box, core, adds)


def _river(draw: np.random.Generator, rows: int, columns: int, scale: float) -> Storm:
    side = 1 if draw.random() < 0.5 else -1
    length, width = scale * draw.uniform(85, 135), scale * draw.uniform(7.5, 10.5)
    angle, bend = draw.uniform(0.2, 0.9), draw.uniform(-0.35, 0.35)
    half = max(2, round(1.15 * length + 3 * width))
    box, up, right = _box(draw, rows, columns, half, side * draw.uniform(25, 45))
    cosine, sine = np.float32(np.cos(angle)), np.float32(side * np.sin(angle))  # eastward and towards the pole
    along = (cosine * right + sine * up) / np.float32(length)
    across = cosine * up - sine * right - np.float32(bend * length) * np.square(along)
    band = np.exp(-np.square(across / np.float32(width)) / 2 - np.square(np.square(along)))
    adds = {NUMBERS[name]: (band, factor) for name, factor in _RIVER_ADDS.items()}
    for name, (axis, share) in _WINDS.items():
        adds[NUMBERS[name]] = (band, _RIVER_WIND * share * float(sine if axis else cosine))
    return Storm(RIVER, box, band, adds)


def _box(
    draw: np.random.Generator, rows: int, columns: int, half: int, latitude: float
) -> tuple[tuple[slice, slice], Plane, Plane]:
    """A square around `latitude`, in degrees, and any longitude, within the grid; and distances from its centre."""
    half = min(half, rows // 2 - 1)
    row = min(max(round((latitude + 90) / 180 * rows), half), rows - half - 1)
    column = int(draw.integers(half, columns - half))
    steps = np.arange(-half, half + 1, dtype=np.float32)
    box = (slice(row - half, row + half + 1), slice(column - half, column + half + 1))
    return box, steps[:, None], steps[None, :]


def _threshold(score: Plane, count: int) -> np.float32:
    """The `count`th largest of the scores."""
    flat = score.reshape(-1)
    return np.float32(np.partition(flat, flat.size - count)[flat.size - count])


def _count(draw: np.random.Generator, mean: float) -> int:
    """A number between half and one and a half of the mean, roughly, and the mean on average."""
    return int(mean * (0.5 + draw.random()) + draw.random())


_BLOCK = 1 << 16  # values: in the processor's cache while they are bounded, measured and checked
_STREAM = 0
_STATS_SAMPLES = 8  # that stats.h5 is taken from


def make(seed: int, sample: int, data: Plane) -> tuple[Plane, Plane, list[int]]:
    """Fill `data`, [16, rows, columns]; labels [rows, columns], stats [16, 4], and each channel's CRC32C."""
    _, rows, columns = data.shape
    pool = fields.pool(seed, rows, columns)
    draw = np.random.Generator(random_bytes.source(seed, sample, _STREAM))
    weather, storms_ = fields.weather(draw, columns), draw_storms(draw, rows, columns)
    stats, checksums = np.empty((len(CHANNELS), 4), dtype="<f4"), []
    for number, channel in enumerate(CHANNELS):
        fields.fill(pool, weather, number, data[number])
        add_storms(storms_, number, data[number])
        stats[number], crc = _finish(channel, data[number].reshape(-1))
        checksums.append(crc)
    labels = label_storms(storms_, pool, data[NUMBERS["TMQ"]], data[NUMBERS["PSL"]])
    return labels, stats, checksums


def dataset_stats(seed: int, shape: tuple[int, int, int]) -> Plane:
    """Mean and standard deviation of each channel over the first 8 samples, and the bounds of all samples, [16, 4].

    They stand for the whole data set, which need not be made for it: any rank can write stats.h5 first.
    """
    data = np.empty(shape, dtype="<f4")
    rows = np.array([make(seed, sample, data)[1] for sample in range(_STATS_SAMPLES)], dtype=np.float64)
    means, _, _, deviations = np.moveaxis(rows, -1, 0)
    largest, smallest = (np.array([getattr(channel, end) for channel in CHANNELS]) for end in ("high", "low"))
    spread = np.sqrt(np.mean(np.square(deviations), axis=0) + np.var(means, axis=0))
    stats = np.stack([means.mean(axis=0), largest, smallest, spread], axis=1)
    return np.asarray(stats, dtype=np.float32)


def _finish(channel: Channel, values: npt.NDArray[np.float32]) -> tuple[tuple[float, float, float, float], int]:
    """Bound the values in place; their mean, maximum, minimum and standard deviation, and their CRC32C.

    Sums are pairwise in float32 within a block, of deviations from the channel's usual mean, and in float64 across.
    """
    usual = np.float32(math.exp(channel.mean) if channel.logarithmic else channel.mean)
    unit = np.float32(1e6 if channel.logarithmic else 1)  # squares of metres a second of rain are too small for float32
    spare = np.empty(min(_BLOCK, values.size), np.float32)
    total = squares = 0.0
    largest, smallest, crc = -math.inf, math.inf, 0
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        if channel.logarithmic:
            np.exp(block, out=block)
        high, low = float(block.max()), float(block.min())
        if high > channel.high or low < channel.low:  # seldom
            np.clip(block, channel.low, channel.high, out=block)
            high, low = float(block.max()), float(block.min())
        largest, smallest = max(largest, high), min(smallest, low)
        crc = crc32c(block.data, crc)
        deviations = np.subtract(block, usual, out=spare[: block.size])
        deviations *= unit
        total += float(deviations.sum())
        squares += float(np.square(deviations, out=deviations).sum())
    mean = total / values.size
    spread = math.sqrt(max(squares / values.size - mean**2, 0))
    return (float(usual) + mean / float(unit), largest, smallest, spread / float(unit)), crc
