"""The `random` fill: seeded raw words, integer operations only, so that every machine makes the same bytes."""

import numpy as np
import numpy.typing as npt

SEED_LIMIT = 2**32  # each entropy word stays in 32 bits: longer ones would be split, and two keys could meet

# Bit 30 is the top bit of a float32's exponent: without it the exponent field is at most 127, so that |x| < 2,
# and neither infinity nor NaN can come out. The other 31 bits stay random: the array cannot be compressed.
_FINITE = np.uint64(0xBFFFFFFF_BFFFFFFF)


def source(seed: int, index: int, stream: int) -> np.random.SFC64:
    """The words of one stream of one sample, independent of all others.

    `seed`, `index` (the sample id) and `stream` are each in [0, 2^32). NumPy guarantees that a bit generator seeded
    by a SeedSequence gives the same raw words in every version and on every machine.
    """
    return np.random.SFC64(np.random.SeedSequence([seed, index, stream]))


def words(source: np.random.SFC64, count: int) -> npt.NDArray[np.uint64]:
    """uint64 [count], little-endian in memory whatever the machine."""
    return source.random_raw(count).astype("<u8", copy=False)


def octets(source: np.random.SFC64, count: int) -> npt.NDArray[np.uint8]:
    """uint8 [count]; whole words are drawn, so that the next draw starts on a new word."""
    return words(source, -(-count // 8)).view(np.uint8)[:count]


def integers(source: np.random.SFC64, count: int) -> npt.NDArray[np.uint32]:
    """uint32 [count], little-endian."""
    return words(source, -(-count // 2)).view("<u4")[:count]


def floats(source: np.random.SFC64, count: int) -> npt.NDArray[np.float32]:
    """float32 [count], little-endian: always finite, |x| < 2, sign and exponent and mantissa random."""
    drawn = words(source, -(-count // 2))
    drawn &= _FINITE
    return drawn.view("<f4")[:count]
