"""CosmoFlow's files under the `physical` fill: arrangements of matter planes that follow the sample's parameters."""

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.cosmoflow import matter, pieces
from dlio_bench.benchmarks.cosmoflow.generations import Early
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import FileSpec, Written

PARAMETERS = 4  # Omega_m, sigma_8, n_s, H_0; the generations before MLPerf have the first of them
_REDSHIFTS = len(matter.STRENGTHS)
_EARLY_MEAN = 8.0  # particles a voxel, 512^3 in 256^3 voxels; MLPerf's finer voxels have 1
_ARRANGEMENT, _LABELS, _SHARE = 0, 1, 2  # streams
_SHARES = 0.95, 1.05  # of the particles of a plane that a sample has
_buffers = threading.local()


def parameters(source: np.random.SFC64, count: int) -> npt.NDArray[np.float32]:
    """Multiples of 2^-23 in [-1, 1): exact in float32."""
    drawn = (random_bytes.integers(source, count) >> 8).astype(np.int32) - 2**23
    return (drawn / 2**23).astype("<f4")


def write_packed(path: Path, spec: FileSpec, seed: int, *, side: int) -> Written:
    """One GZIP file of one MLPerf sample, put together from compressed planes. OSError."""
    labels, arrangement = sample(seed, spec.first, side, PARAMETERS)
    before, _, after = example.encode({"x": _blank(side), "y": labels})
    packed = _packed(seed, side)
    return pieces.write(path, before, [packed[plane] for plane in matter.sequence(arrangement)], after)


def write_mlperf(path: Path, spec: FileSpec, seed: int, *, side: int) -> Written:
    """One uncompressed file of one MLPerf sample. OSError."""
    labels, arrangement = sample(seed, spec.first, side, PARAMETERS)
    voxels = _buffer((side, side, side, _REDSHIFTS), "<i2")
    matter.assemble(_mlperf_pool(seed, side), arrangement, voxels)
    return tfrecord.write(path, [example.encode({"x": voxels.data.cast("B"), "y": labels})])


def write_early(path: Path, spec: FileSpec, seed: int, *, generation: Early, side: int) -> Written:
    """One file of many records of a generation before MLPerf. OSError."""
    return tfrecord.write(path, _early_records(generation, spec, seed, side))


def sample(seed: int, number: int, side: int, count: int) -> tuple[npt.NDArray[np.float32], tuple[matter.Run, ...]]:
    """The parameters of one sample, in [-1, 1), and the planes it is made of.

    sigma_8 sets the strength of the field. Omega_m, n_s and H_0 all move its spectrum, the first as much as the others
    together: one number, their mean, sets the tilt.
    """
    labels = parameters(random_bytes.source(seed, number, _LABELS), count)
    density, strength, others = float(labels[0]), float(labels[1]), labels[2:].tolist()
    tilt = (len(others) * density + sum(others)) / (2 * len(others)) if others else density
    return labels, matter.runs(random_bytes.source(seed, number, _ARRANGEMENT), side, strength, tilt)


def _early_records(generation: Early, spec: FileSpec, seed: int, side: int) -> Iterator[Sequence[Piece]]:
    """The labels have the z-scores of uniform parameters, of standard deviation 1."""
    voxels = _buffer((side, side, side, 1), generation.dtype)
    planes = matter.pool(seed, side, _EARLY_MEAN, 1, "<f4")
    for number in range(spec.first, spec.first + spec.samples):
        labels, arrangement = sample(seed, number, side, generation.targets)
        matter.assemble(planes, arrangement, voxels)
        _count_anew(random_bytes.source(seed, number, _SHARE), voxels)
        stored = generation.stored(labels * np.float32(np.sqrt(3)))
        yield example.encode({"data_raw": voxels.data.cast("B"), "label_raw": stored.tobytes()})


def _count_anew(source: np.random.SFC64, voxels: matter.Counts) -> None:
    """Take a share of the particles, rounded up or down at random in each voxel, so that no two samples share planes.

    (Planes that come turned alone gave whole files one maximum.)
    """
    low, high = _SHARES
    voxels *= low + (high - low) * float(random_bytes.integers(source, 2)[0]) / 2**32
    up = random_bytes.octets(source, 2 * voxels.size).view("<u2").astype("<f4")
    voxels += np.multiply(up, np.float32(2**-16), out=up).reshape(voxels.shape)
    np.floor(voxels, out=voxels)


def _mlperf_pool(seed: int, side: int) -> matter.Counts:
    return matter.pool(seed, side, 1.0, _REDSHIFTS, "<i2")


@lru_cache(maxsize=1)
def _packed(seed: int, side: int) -> list[pieces.Packed]:
    """Every plane of the pool, compressed."""
    planes = _mlperf_pool(seed, side)
    return [pieces.pack(plane.data.cast("B")) for plane in planes.reshape(-1, *planes.shape[-3:])]


@lru_cache(maxsize=1)
def _blank(side: int) -> memoryview:
    """As many bytes as a sample's voxels have; what an Example's parts need to know of them."""
    return memoryview(bytes(side**3 * _REDSHIFTS * 2))


def _buffer(shape: tuple[int, ...], dtype: str) -> matter.Counts:
    """One array a thread, used again for each sample: fresh memory is slower to touch than the disk to write."""
    if getattr(_buffers, "key", None) != (shape, dtype):
        _buffers.key, _buffers.voxels = (shape, dtype), np.empty(shape, dtype)
    voxels: matter.Counts = _buffers.voxels
    return voxels
