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
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.benchmarks.imagenet.images import segment
from dlio_bench.datagen import random_bytes

# Strips of noise as entropy-coded JPEG data: drawn as quantised DCT coefficients and Huffman-coded, many at once.
#
# Source of the format: ITU-T T.81: markers annex B, coding of coefficients annex F.1.2, the quantisation and Huffman
# tables of luminance annex K.1 and K.3 (here for all three components).

BLOCKS, COMPONENTS = 8, 3  # of a strip: 8 x 8 pixels each
QUALITY = 92  # of the quantisation table, on the scale of the Independent JPEG Group
END = b"\xff\xd9"
_STREAM = 1  # a sample's own words are stream 0
_LEVELS = 1 << 16  # of a draw
_NO_RUN = 16  # zeros that a code of their own stands for
_MOST = 1023  # a coefficient's magnitude in baseline coding

# fmt: off
_QUANTA = np.array([
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
])
_DC_COUNTS = bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
_AC_COUNTS = bytes([0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125])
# fmt: on
_DC_SYMBOLS = bytes(range(12))
_AC_SYMBOLS = bytes.fromhex(
    "01020300041105122131410613516107227114328191a1082342b1c11552d1f02433627282090a161718191a25262728292a3435363738393a"
    "434445464748494a535455565758595a636465666768696a737475767778797a838485868788898a92939495969798999aa2a3a4a5a6a7a8a9"
    "aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa"
)
_ZIGZAG = sorted(range(64), key=lambda n: (sum(divmod(n, 8)), n if sum(divmod(n, 8)) % 2 else -n))
_STEPS = np.maximum(1, (_QUANTA[_ZIGZAG] * (200 - 2 * QUALITY) + 50) // 100)  # in zigzag order, as all that follows
_FREQUENCIES = np.hypot(*np.divmod(np.array(_ZIGZAG), 8))


_START = b"\xff\xd8" + segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
_START += segment(0xDB, b"\0" + bytes(_STEPS.tolist()))
_TABLES = segment(0xC4, b"\0" + _DC_COUNTS + _DC_SYMBOLS + b"\x10" + _AC_COUNTS + _AC_SYMBOLS)
_TABLES += segment(0xDD, struct.pack(">H", BLOCKS))
_TABLES += segment(0xDA, bytes([COMPONENTS, 1, 0, 2, 0, 3, 0, 0, 63, 0]))


def jpeg_head(width: int, height: int) -> bytes:
    """All of a file before its first strip, of HEAD bytes."""
    components = bytes([COMPONENTS, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])
    return _START + segment(0xC0, struct.pack(">BHH", 8, height, width) + components) + _TABLES


HEAD = len(jpeg_head(1, 1))


def encode_strips(
    colour: tuple[float, float, float], contrast: float, slope: float, *, count: int, seed: int, number: int
) -> list[bytes]:
    """`count` strips, byte-aligned, without markers; `seed` and `number` give the randomness.

    `colour` is the mean of Y, Cb, Cr, each less 128. A coefficient's standard deviation is contrast / frequency^slope
    (frequency 1: half a period a block); chrominance has a third of it.
    """
    words = random_bytes.source(seed, number, _STREAM)
    draws = random_bytes.integers(words, count * BLOCKS * COMPONENTS * 32).view("<u2")
    noise = _normal()[draws].reshape(count, BLOCKS, COMPONENTS, 64)
    with np.errstate(divide="ignore"):
        deviations = contrast / _FREQUENCIES**slope / _STEPS
    deviations[0] = contrast / 2 / _STEPS[0]  # of a step from block to block
    scales = (np.array([[1], [1 / 3], [1 / 3]]) * deviations).astype(np.float32)
    noise *= scales
    means = np.cumsum(noise[..., 0], axis=1) + np.array(colour, np.float32) * np.float32(8 / _STEPS[0])
    values = np.rint(noise).astype(np.int64)
    values[..., 0] = np.rint(means)
    values[..., 0] = np.diff(np.clip(values[..., 0], -_MOST, _MOST), axis=1, prepend=0)
    np.clip(values[..., 1:], -_MOST, _MOST, out=values[..., 1:])
    codes, lengths = _tokens(values.reshape(-1, 64))
    return _pack_codes(codes.reshape(count, -1), lengths.reshape(count, -1))


def _tokens(blocks: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Codes and their bits, [blocks, 65]: the DC difference, 63 coefficients (0 bits for zeros), the end of the block.

    The codes for runs of zeros are part of the coefficient's behind them.
    """
    place = np.arange(64)
    last = np.maximum.accumulate(np.where(blocks != 0, place, 0), axis=1)  # nonzero coefficient so far, or the DC
    run = np.zeros_like(blocks)
    run[:, 1:] = place[1:] - last[:, :-1] - 1
    size = np.frexp(np.abs(blocks).astype(np.float32))[1].astype(np.int64)  # bits of the magnitude
    bits = np.where(blocks < 0, blocks + (1 << size) - 1, blocks).astype(np.uint64)
    (dc_codes, dc_lengths), (ac_codes, ac_lengths) = _tables()
    codes = np.zeros((len(blocks), 65), np.uint64)
    lengths = np.zeros(codes.shape, np.int64)
    codes[:, :64] = ac_codes[run, size] << size.astype(np.uint64) | bits
    lengths[:, :64] = np.where(blocks != 0, ac_lengths[run, size] + size, 0)
    codes[:, 0] = dc_codes[size[:, 0]] << size[:, 0].astype(np.uint64) | bits[:, 0]
    lengths[:, 0] = dc_lengths[size[:, 0]] + size[:, 0]
    codes[:, 64] = ac_codes[0, 0]
    lengths[:, 64] = np.where(last[:, -1] < 63, ac_lengths[0, 0], 0)
    return codes, lengths


def _pack_codes(codes: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64]) -> list[bytes]:
    """Each row of codes as bytes: filled with 1s to a whole byte, and a zero behind every 0xFF."""
    total = lengths.sum(axis=1)
    padded = (total + 7) // 8 * 8
    offset = np.cumsum(padded) - padded - (np.cumsum(total) - total)  # what the padding before a row moves it by
    offset = np.repeat(offset, total)
    flat, bits = codes[lengths > 0], lengths[lengths > 0]
    behind = np.repeat(np.cumsum(bits), bits) - np.arange(bits.sum()) - 1  # bits of the same code that follow
    out = np.ones(int(padded.sum()), np.uint8)
    out[np.arange(behind.size) + offset] = np.repeat(flat, bits) >> behind.astype(np.uint64) & np.uint64(1)
    octets = np.packbits(out)
    escaped = octets == 0xFF
    ends = np.cumsum(padded) // 8
    ends += np.cumsum(escaped)[ends - 1]
    stuffed = np.insert(octets, np.flatnonzero(escaped) + 1, 0).tobytes()
    return [stuffed[start:end] for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


Table = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]


@cache
def _tables() -> tuple[Table, Table]:
    """Codes and lengths by size (DC), and by run of zeros and size (AC; [0, 0] is the end of the block)."""
    dc = _huffman(_DC_COUNTS, _DC_SYMBOLS)
    ac = _huffman(_AC_COUNTS, _AC_SYMBOLS)
    zeros, zeros_length = ac[0xF0]
    codes, lengths = np.zeros((64, 12), np.uint64), np.zeros((64, 12), np.int64)
    codes[0, 0], lengths[0, 0] = ac[0]
    for run in range(63):
        prefix = 0
        for _ in range(run // _NO_RUN):
            prefix = prefix << zeros_length | zeros
        for size in range(1, 11):
            code, length = ac[run % _NO_RUN << 4 | size]
            codes[run, size] = prefix << length | code
            lengths[run, size] = run // _NO_RUN * zeros_length + length
    dc_codes = np.array([dc[size][0] for size in range(12)], np.uint64)
    return (dc_codes, np.array([dc[size][1] for size in range(12)])), (codes, lengths)


def _huffman(counts: bytes, symbols: bytes) -> dict[int, tuple[int, int]]:
    """Symbol -> code and its length (T.81, annex C)."""
    codes, code, at = {}, 0, 0
    for length, count in enumerate(counts, start=1):
        for symbol in symbols[at : at + count]:
            codes[symbol] = code, length
            code += 1
        at += count
        code <<= 1
    return codes


@cache
def _normal() -> npt.NDArray[np.float32]:
    """Quantiles of the standard normal distribution at the middle of each level."""
    inverse = NormalDist().inv_cdf
    half = [inverse((level + 0.5) / _LEVELS) for level in range(_LEVELS // 2)]
    return np.array([*half, *(-value for value in reversed(half))], np.float32)


PALETTES, PARTS = 10, 3
CLASSES = PALETTES**PARTS
STRIPS = 1024  # of a palette: fewer would be found again by gzip, whose window is 32 KiB
WIDTH, HEIGHT = 8 * BLOCKS, 8  # pixels of a strip
FEWEST = 4  # strips of a picture: they spell the id
CROPPED = 8  # pixels, at most 7 of which are left out at the right and at the bottom
_RESTARTS = [struct.pack(">BB", 0xFF, 0xD0 + number) for number in range(8)]  # RST0..RST7 in turn between strips
SCRAMBLE = 0x9E3779B97 | 1  # odd: a bijection of 40 bits


class StripPool(Struct, frozen=True):
    """The strips of a seed."""

    pieces: tuple[bytes, ...]  # [PALETTES x STRIPS], without the marker that follows each
    lengths: npt.NDArray[np.int64]  # [PALETTES x STRIPS], bytes with marker
    means: npt.NDArray[np.float64]  # [PALETTES]


class PicturePlan(Struct, frozen=True):
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
    pieces = [END] * (2 * count + 1)
    pieces[0] = jpeg_head(made.width, made.height)
    pieces[1::2] = itemgetter(*made.strips.tolist())(pool(seed).pieces)
    pieces[2:-1:2] = (_RESTARTS * (count // len(_RESTARTS) + 1))[: count - 1]
    return b"".join(pieces), made.width, made.height


def plan(source: np.random.SFC64, seed: int, sample: int, label: int, size: int) -> PicturePlan:
    """What `make` joins."""
    palettes = [(label - 1) // PALETTES**part % PALETTES for part in reversed(range(PARTS))]
    means = pool(seed).means
    words = random_bytes.words(source, 2)
    cuts = [int(words[0]) >> shift & 0xFF for shift in (0, 8)]
    # The upper and the lower part take a third of the rows each, more or less; the middle takes the rest.
    shares = [(256 + cut) / 1152 for cut in cuts]
    shares.insert(1, 1 - sum(shares))
    expected = sum(means[palette] * share for palette, share in zip(palettes, shares, strict=True))
    columns, rows = grid(max(FEWEST, round((size - HEAD) / expected)))
    upper, lower = round(shares[0] * rows), round(shares[2] * rows)
    base = np.repeat(np.array(palettes) * STRIPS, np.array([upper, rows - upper - lower, lower]) * columns)
    drawn = random_bytes.integers(source, -(-columns * rows // 2)).view("<u2")[: columns * rows] % STRIPS
    spelt = sample * SCRAMBLE % STRIPS**FEWEST
    drawn[:FEWEST] = [spelt // STRIPS**place % STRIPS for place in range(FEWEST)]
    cropped = int(words[1]) % CROPPED, (int(words[1]) >> 8) % CROPPED
    return PicturePlan(WIDTH * columns - cropped[0], HEIGHT * rows - cropped[1], base + drawn)


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
def pool(seed: int) -> StripPool:
    """All strips, made once a process: about a second and 4 MB."""
    encoded = [encode_strips(*palette(number), count=STRIPS, seed=seed, number=number) for number in range(PALETTES)]
    pieces = tuple(piece for of_palette in encoded for piece in of_palette)
    lengths = np.array([len(piece) + len(END) for piece in pieces])
    return StripPool(pieces, lengths, lengths.reshape(PALETTES, STRIPS).mean(axis=1))
