"""CosmoFlow's files under the `physical` fill: arrangements of matter planes that follow the sample's parameters."""

import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from isal import isal_zlib
from msgspec import Struct

from dlio_bench.benchmarks.cosmoflow.generations import Early
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import FileSpec, WrittenFile

# The `physical` fill: counts of particles in a lognormal density field, whose parameters can be learned from it.
#
# One Gaussian field g a sample, spectrum k (1 + k / 0.02)^-2.8 exp(-(k / 1.2)^2) with k in radians a voxel; each
# redshift has the density exp(s g - s^2 / 2), scaled to its mean, and Poisson counts of it. The strengths s and the
# spectrum were fitted to the published GZIP size (2.83 MB at zlib's level 6), and give 0.70, 0.64, 0.54 and 0.46 of
# empty voxels. They are estimates: the simulations themselves were not at hand.
#
# Making a field takes a third of a second, and compressing it one more. A process therefore makes a pool of planes
# once, a grid of strengths by tilts, and each sample is an arrangement of them: runs of neighbouring planes from the
# cells nearest to its parameters, in proportion. The fields are periodic, so that a run may start and turn anywhere.

STRENGTHS = (1.85, 1.55, 1.10, 0.75)  # of redshifts 0, 0.5, 1.5 and 3
SPREAD = 0.082  # standard deviation of the strength's logarithm over samples: +- 71 kB of GZIP
RUNS = 8  # a sample's pieces of neighbouring planes
_LEVELS, _TILTS, _DEPTH = 4, 2, 24  # cells of the pool, and planes of each
_TILT = 0.6  # of the spectrum's exponent, at the ends of its range
_LARGEST = np.iinfo(np.int16).max
_POOL = 1 << 20  # streams of the pool, beyond those of samples

Counts = npt.NDArray[np.int16] | npt.NDArray[np.float32]


class PlaneRun(Struct, frozen=True):
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


def runs(source: np.random.SFC64, side: int, strength: float, tilt: float) -> tuple[PlaneRun, ...]:
    """The arrangement of one sample whose strength and tilt, each in [-1, 1], say which cells its planes are from."""
    draw = np.random.Generator(source)
    levels = _draw_cells(draw, strength, _LEVELS)
    tilts = _draw_cells(draw, tilt, _TILTS)
    chosen = []
    for level, slope in zip(levels, tilts, strict=True):
        start, step = int(draw.integers(_DEPTH)), 1 - 2 * int(draw.integers(2))
        roll, flip = draw.integers(side, size=2), draw.integers(2, size=2)
        planes = tuple((start + step * n) % _DEPTH for n in range(side // RUNS))
        chosen.append(PlaneRun(level, slope, planes, (int(roll[0]), int(roll[1])), (bool(flip[0]), bool(flip[1]))))
    return tuple(chosen)


def assemble(planes: Counts, arrangement: tuple[PlaneRun, ...], out: Counts) -> None:
    """Fill `out`, [side, side, side, redshifts], with the planes of a pool, rolled and flipped run by run."""
    place = 0
    for run in arrangement:
        cell = planes[run.level, run.tilt]
        (row, column), flips = run.roll, tuple(slice(None, None, -1 if flip else 1) for flip in run.flip)
        for plane in run.planes:
            turned, target = cell[plane][flips], out[place]
            for to_rows, from_rows in _rolled_slices(row):
                for to_columns, from_columns in _rolled_slices(column):
                    target[to_rows, to_columns] = turned[from_rows, from_columns]
            place += 1


def sequence(arrangement: tuple[PlaneRun, ...]) -> Iterator[int]:
    """Numbers of the planes in the pool, as they lie in it, for samples that are not rolled."""
    for run in arrangement:
        yield from ((run.level * _TILTS + run.tilt) * _DEPTH + plane for plane in run.planes)


def _draw_cells(draw: np.random.Generator, value: float, cells: int) -> list[int]:
    """A cell for each run: the two nearest to `value`, the upper one in proportion, in any order."""
    low, share = divmod((value + 1) / 2 * (cells - 1), 1)
    upper = int(share * RUNS + draw.random())  # rounded so that it is right on average
    chosen = np.full(RUNS, min(int(low), cells - 1))
    chosen[:upper] += 1
    return [int(cell) for cell in np.minimum(draw.permutation(chosen), cells - 1)]


def _rolled_slices(roll: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
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


# GZIP TFRecords of one record put together from pieces that were compressed beforehand.
#
# A deflate stream that is flushed fully (Z_FULL_FLUSH) ends on a whole byte and forgets what came before: such pieces
# can be joined in any order, and any program unpacks the result. Only the checksums run over the bytes themselves.

# zlib's default, as TensorFlow's. ISA-L is thirty times as fast, and its files would be a quarter larger than those
# published.
LEVEL = 6
_RAW_WINDOW = -15  # zlib's wbits for the largest window, without header and trailer
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time, unknown system: RFC 1952


class Packed(Struct, frozen=True):
    """Bytes and what they were compressed to."""

    raw: memoryview
    deflated: bytes


def pack_piece(raw: memoryview) -> Packed:
    """Compress one piece, so that it depends on no other."""
    return Packed(raw, _deflate(raw, zlib.Z_FULL_FLUSH))


def write_pieces(path: Path, before: Piece, pieces: Sequence[Packed], after: Piece) -> WrittenFile:
    """Write a file whose one record is `before`, the pieces and `after`; its stored extent is the file. OSError."""
    raws = [before, *(piece.raw for piece in pieces), after]
    length = sum(map(len, raws))
    start = tfrecord.head(length)
    crc, check = 0, isal_zlib.crc32(start)
    for raw in raws:
        crc = crc32c(raw, crc)
        check = isal_zlib.crc32(raw, check)
    end = tfrecord.tail(crc)
    size = len(start) + length + len(end)
    stored = b"".join(
        (
            _HEADER,
            _deflate(start + before, zlib.Z_FULL_FLUSH),
            *(piece.deflated for piece in pieces),
            _deflate(bytes(after) + end, zlib.Z_FINISH),
            struct.pack("<II", isal_zlib.crc32(end, check), size & 0xFFFFFFFF),
        )
    )
    with path.open("wb", buffering=0) as file:
        view = memoryview(stored)
        while view:  # a raw write may take a part only
            view = view[file.write(view) :]
    return WrittenFile(
        extents=np.array([[[0, len(stored), length]]], dtype=np.int64),
        checksums=np.array([[crc]], dtype=np.uint32),
    )


def _deflate(raw: Piece, end: int) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _RAW_WINDOW)
    return packer.compress(raw) + packer.flush(end)


PARAMETERS = 4  # Omega_m, sigma_8, n_s, H_0; the generations before MLPerf have the first of them
_REDSHIFTS = len(STRENGTHS)
_EARLY_MEAN = 8.0  # particles a voxel, 512^3 in 256^3 voxels; MLPerf's finer voxels have 1
_ARRANGEMENT, _LABELS, _SHARE = 0, 1, 2  # streams
_SHARES = 0.95, 1.05  # of the particles of a plane that a sample has
_buffers = threading.local()


def parameters(source: np.random.SFC64, count: int) -> npt.NDArray[np.float32]:
    """Multiples of 2^-23 in [-1, 1): exact in float32."""
    drawn = (random_bytes.integers(source, count) >> 8).astype(np.int32) - 2**23
    return (drawn / 2**23).astype("<f4")


def write_packed(path: Path, spec: FileSpec, seed: int, *, side: int) -> WrittenFile:
    """One GZIP file of one MLPerf sample, put together from compressed planes. OSError."""
    labels, arrangement = sample(seed, spec.first, side, PARAMETERS)
    before, _, after = example.encode({"x": _blank(side), "y": labels})
    packed = _compress_pool(seed, side)
    return write_pieces(path, before, [packed[plane] for plane in sequence(arrangement)], after)


def write_mlperf(path: Path, spec: FileSpec, seed: int, *, side: int) -> WrittenFile:
    """One uncompressed file of one MLPerf sample. OSError."""
    labels, arrangement = sample(seed, spec.first, side, PARAMETERS)
    voxels = _buffer((side, side, side, _REDSHIFTS), "<i2")
    assemble(_mlperf_pool(seed, side), arrangement, voxels)
    return tfrecord.write(path, [example.encode({"x": voxels.data.cast("B"), "y": labels})])


def write_early(path: Path, spec: FileSpec, seed: int, *, generation: Early, side: int) -> WrittenFile:
    """One file of many records of a generation before MLPerf. OSError."""
    return tfrecord.write(path, _early_records(generation, spec, seed, side))


def sample(seed: int, number: int, side: int, count: int) -> tuple[npt.NDArray[np.float32], tuple[PlaneRun, ...]]:
    """The parameters of one sample, in [-1, 1), and the planes it is made of.

    sigma_8 sets the strength of the field. Omega_m, n_s and H_0 all move its spectrum, the first as much as the others
    together: one number, their mean, sets the tilt.
    """
    labels = parameters(random_bytes.source(seed, number, _LABELS), count)
    density, strength, others = float(labels[0]), float(labels[1]), labels[2:].tolist()
    tilt = (len(others) * density + sum(others)) / (2 * len(others)) if others else density
    return labels, runs(random_bytes.source(seed, number, _ARRANGEMENT), side, strength, tilt)


def _early_records(generation: Early, spec: FileSpec, seed: int, side: int) -> Iterator[Sequence[Piece]]:
    """The labels have the z-scores of uniform parameters, of standard deviation 1."""
    voxels = _buffer((side, side, side, 1), generation.dtype)
    planes = pool(seed, side, _EARLY_MEAN, 1, "<f4")
    for number in range(spec.first, spec.first + spec.samples):
        labels, arrangement = sample(seed, number, side, generation.targets)
        assemble(planes, arrangement, voxels)
        _count_anew(random_bytes.source(seed, number, _SHARE), voxels)
        stored = generation.encode_scores(labels * np.float32(np.sqrt(3)))
        yield example.encode({"data_raw": voxels.data.cast("B"), "label_raw": stored.tobytes()})


def _count_anew(source: np.random.SFC64, voxels: Counts) -> None:
    """Take a share of the particles, rounded up or down at random in each voxel, so that no two samples share planes.

    (Planes that come turned alone gave whole files one maximum.)
    """
    low, high = _SHARES
    voxels *= low + (high - low) * float(random_bytes.integers(source, 2)[0]) / 2**32
    up = random_bytes.octets(source, 2 * voxels.size).view("<u2").astype("<f4")
    voxels += np.multiply(up, np.float32(2**-16), out=up).reshape(voxels.shape)
    np.floor(voxels, out=voxels)


def _mlperf_pool(seed: int, side: int) -> Counts:
    return pool(seed, side, 1.0, _REDSHIFTS, "<i2")


@lru_cache(maxsize=1)
def _compress_pool(seed: int, side: int) -> list[Packed]:
    """Every plane of the pool, compressed."""
    planes = _mlperf_pool(seed, side)
    return [pack_piece(plane.data.cast("B")) for plane in planes.reshape(-1, *planes.shape[-3:])]


@lru_cache(maxsize=1)
def _blank(side: int) -> memoryview:
    """As many bytes as a sample's voxels have; what an Example's parts need to know of them."""
    return memoryview(bytes(side**3 * _REDSHIFTS * 2))


def _buffer(shape: tuple[int, ...], dtype: str) -> Counts:
    """One array a thread, used again for each sample: fresh memory is slower to touch than the disk to write."""
    if getattr(_buffers, "key", None) != (shape, dtype):
        _buffers.key, _buffers.voxels = (shape, dtype), np.empty(shape, dtype)
    voxels: Counts = _buffers.voxels
    return voxels
