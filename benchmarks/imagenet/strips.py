"""Strips of noise as entropy-coded JPEG data: drawn as quantised DCT coefficients and Huffman-coded, many at once.

Source of the format: ITU-T T.81: markers annex B, coding of coefficients annex F.1.2, the quantisation and Huffman
tables of luminance annex K.1 and K.3 (here for all three components).
"""

import struct
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen import random_bytes

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


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


_START = b"\xff\xd8" + _segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0")
_START += _segment(0xDB, b"\0" + bytes(_STEPS.tolist()))
_TABLES = _segment(0xC4, b"\0" + _DC_COUNTS + _DC_SYMBOLS + b"\x10" + _AC_COUNTS + _AC_SYMBOLS)
_TABLES += _segment(0xDD, struct.pack(">H", BLOCKS))
_TABLES += _segment(0xDA, bytes([COMPONENTS, 1, 0, 2, 0, 3, 0, 0, 63, 0]))


def head(width: int, height: int) -> bytes:
    """All of a file before its first strip, of HEAD bytes."""
    components = bytes([COMPONENTS, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])
    return _START + _segment(0xC0, struct.pack(">BHH", 8, height, width) + components) + _TABLES


HEAD = len(head(1, 1))


def encoded(
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
    return _packed(codes.reshape(count, -1), lengths.reshape(count, -1))


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


def _packed(codes: npt.NDArray[np.uint64], lengths: npt.NDArray[np.int64]) -> list[bytes]:
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
