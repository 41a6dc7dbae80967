"""CosmoFlow's files under the `physical` fill: arrangements of matter planes that follow the sample's parameters."""

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.cosmoflow import matter, pieces
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import example, tfrecord
from dlio_bench.datagen.formats.tfrecord import Piece
from dlio_bench.datagen.layout import FileSpec, Written

PARAMETERS, SC18_PARAMETERS = 4, 3  # Omega_m, sigma_8, n_s, H_0; SC18 lacks the last
_REDSHIFTS = len(matter.STRENGTHS)
_SC18_MEAN = 8.0  # particles a voxel; MLPerf's finer voxels have 1
_ARRANGEMENT, _LABELS = 0, 1  # streams
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


def write_sc18(path: Path, spec: FileSpec, seed: int, *, side: int) -> Written:
    """One file of many SC18 records. OSError."""
    return tfrecord.write(path, _sc18_records(spec, seed, side))


def sample(seed: int, number: int, side: int, count: int) -> tuple[npt.NDArray[np.float32], tuple[matter.Run, ...]]:
    """The parameters of one sample, in [-1, 1), and the planes it is made of.

    sigma_8 sets the strength of the field. Omega_m, n_s and H_0 all move its spectrum, the first as much as the others
    together: one number, their mean, sets the tilt.
    """
    labels = parameters(random_bytes.source(seed, number, _LABELS), count)
    density, strength, others = float(labels[0]), float(labels[1]), labels[2:].tolist()
    tilt = (len(others) * density + sum(others)) / (2 * len(others))
    return labels, matter.runs(random_bytes.source(seed, number, _ARRANGEMENT), side, strength, tilt)


def _sc18_records(spec: FileSpec, seed: int, side: int) -> Iterator[Sequence[Piece]]:
    """The labels are z-scores of the parameters, as published: uniform ones, of standard deviation 1.

    Published means and standard deviations, which are already taken out: Omega_m 0.3, 0.02853; sigma_8 0.8628,
    0.04887; n_s 0.95, 0.028 (NERSC/cosmoflow-sims @0470136 io_Cosmo-3param.py).
    """
    voxels = _buffer((side, side, side, 1), "<f4")
    planes = matter.pool(seed, side, _SC18_MEAN, 1, "<f4")
    for number in range(spec.first, spec.first + spec.samples):
        labels, arrangement = sample(seed, number, side, SC18_PARAMETERS)
        matter.assemble(planes, arrangement, voxels)
        scores = (labels * np.float32(np.sqrt(3))).astype("<f4")
        yield example.encode({"data_raw": voxels.data.cast("B"), "label_raw": scores.tobytes()})


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
