"""One CDB sample of the `physical` fill: fields, storms, masks, statistics and checksums in one pass a channel."""

import math

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from dlio_bench.benchmarks.cdb import fields, storms
from dlio_bench.benchmarks.cdb.fields import CHANNELS, NUMBERS, Channel, Plane
from dlio_bench.datagen import random_bytes

_BLOCK = 1 << 16  # values: in the processor's cache while they are bounded, measured and checked
_STREAM = 0
_STATS_SAMPLES = 8  # that stats.h5 is taken from


def make(seed: int, sample: int, data: Plane) -> tuple[Plane, Plane, list[int]]:
    """Fill `data`, [16, rows, columns]; labels [rows, columns], stats [16, 4], and each channel's CRC32C."""
    _, rows, columns = data.shape
    pool = fields.pool(seed, rows, columns)
    draw = np.random.Generator(random_bytes.source(seed, sample, _STREAM))
    weather, storms_ = fields.weather(draw, columns), storms.storms(draw, rows, columns)
    stats, checksums = np.empty((len(CHANNELS), 4), dtype="<f4"), []
    for number, channel in enumerate(CHANNELS):
        fields.fill(pool, weather, number, data[number])
        storms.add(storms_, number, data[number])
        stats[number], crc = _finish(channel, data[number].reshape(-1))
        checksums.append(crc)
    labels = storms.labels(storms_, pool, data[NUMBERS["TMQ"]], data[NUMBERS["PSL"]])
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
