"""HEPCNNB's files: nine contiguous HDF5 datasets at the root, 709 training images of 3 x 224 x 224 each."""

import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from dlio_bench.atomic_files import write_at
from dlio_bench.benchmarks.hepcnnb import events
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import hdf5
from dlio_bench.datagen.layout import (
    PHYSICAL,
    RANDOM,
    TRAIN,
    VALIDATION,
    Field,
    FileSpec,
    Integers,
    Layout,
    Split,
    WrittenFile,
    ids_in,
)

Scalars = dict[str, npt.NDArray[Any]]  # [events] each

FULL_SHAPE, TINY_SHAPE = (3, 224, 224), (3, 16, 16)
FILES = 1024  # of each split
# Split -> samples and bytes of a file, as HDF5 lays these out; HDFView shows 416 918 K and 55 279 K for the published.
FULL = {TRAIN: (709, 426_926_240), VALIDATION: (94, 56_607_048)}
TINY = {TRAIN: (64, 202_840), VALIDATION: (8, 30_808)}
SLAB = 16  # events made at once: more would not stay in the processor's cache

# The published order of the datasets (HDFView object addresses), behind `data`.
SCALARS = {
    "label": "<i4",  # 0 background, 1 signal
    "weight": "<f4",  # of the event, not normalised
    "normweight": "<f4",  # weight / largest weight
    "psr": "<i4",  # passes the standard regions cut: 0, 1
    "mg": "<f4",  # gluino mass, GeV; 0 for background
    "mn": "<f4",  # neutralino mass, GeV; 0 for background
    "jz": "<i4",  # QCD slice, 3..11; 0 for signal
    "eid": "<i4",  # event id
}
SOURCE = (
    "NERSC/DL-Parallel-IO @290ed4a: slides Project_Progress_Time_Breakdown_IO_20180629 s6-s20 (HDFView), "
    "Project_Summary_20180816 s12, and the pre-processing writer"
)
_IMAGE, _EVENT = 0, 1  # streams
_LARGEST_WEIGHT = 8.0  # ours: a power of two keeps the quotient exact


def layout(tiny: bool, fill: str) -> Layout:
    """Variant "224": the files hep_train_chunk<N>.h5 and hep_validation_chunk<N>.h5 of the I/O study."""
    shape = TINY_SHAPE if tiny else FULL_SHAPE
    return Layout(
        workload="hepcnnb",
        variant="224",
        container="hdf5",
        fields=(Field("data", "<f4", shape), *(Field(name, dtype, ()) for name, dtype in SCALARS.items())),
        splits=tuple(
            Split(
                name=name,
                full_files=FILES,
                full_samples=FILES * samples,
                samples_per_file=samples,
                file_bytes=size,
                payload_bytes=4 * (math.prod(shape) + len(SCALARS)),
                spec_files=partial(spec_files, split=name, samples=samples),
            )
            for name, (samples, size) in (TINY if tiny else FULL).items()
        ),
        source=SOURCE,
        tiny=tiny,
        fill=fill,
        write=partial(write, shape=shape, fill=fill),
        auxiliary={},
        labels=LABELS[fill],
        optional=("mg", "mn", "jz", "eid"),  # load_next_file opens none of them
    )


def spec_files(files: int, *, split: str, samples: int) -> tuple[FileSpec, ...]:
    """hep_train_chunk0.h5, hep_train_chunk1.h5, ...; validation in the same folder."""
    return tuple(FileSpec(f"hep_{split}_chunk{n}.h5", n * samples, samples, split) for n in range(files))


def write(path: Path, spec: FileSpec, seed: int, *, shape: tuple[int, int, int], fill: str) -> WrittenFile:
    """One file, a few images at a time: memory stays small however large the file. OSError."""
    ids = ids_in(spec, seed, LABELS[fill])
    offsets = hdf5.allocate(
        path,
        [("data", "<f4", (spec.samples, *shape)), *((name, dtype, (spec.samples,)) for name, dtype in SCALARS.items())],
    )
    bytes_each = 4 * math.prod(shape)
    checksums = np.empty((spec.samples, 1 + len(SCALARS)), dtype=np.uint32)
    scalars: list[Scalars] = []
    row = 0
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for images, values in (_simulate_images if fill == PHYSICAL else _random)(ids, seed, shape):
            write_at(handle, images, offsets["data"] + row * bytes_each)
            for image in images:
                checksums[row, 0] = crc32c(image.data)
                row += 1
            scalars.append(values)
        for column, name in enumerate(SCALARS, start=1):
            stored = np.concatenate([part[name] for part in scalars])
            write_at(handle, stored, offsets[name])
            checksums[:, column] = [crc32c(value.data) for value in stored]
    finally:
        os.close(handle)
    extents = np.empty((spec.samples, 1 + len(SCALARS), 3), dtype=np.int64)
    extents[:, :, 1:] = np.array([bytes_each] + [4] * len(SCALARS))[:, None]
    starts = np.array([offsets[name] for name in ("data", *SCALARS)])
    extents[:, :, 0] = starts + np.arange(spec.samples)[:, None] * extents[0, :, 1]
    return WrittenFile(extents, checksums)


def _simulate_images(
    ids: Integers, seed: int, shape: tuple[int, int, int]
) -> Iterator[tuple[npt.NDArray[np.float32], Scalars]]:
    """Images [events, 3, side, side] and their scalars, some events at a time; an image lives until the next ones."""
    buffer = np.zeros((SLAB, *shape), dtype="<f4")
    pixels = buffer.reshape(-1)
    for first in range(0, len(ids), SLAB):
        part = ids[first : first + SLAB]
        drawn = events.draw(seed, part)
        hits = events.hits(drawn, shape[1])
        np.add.at(pixels, hits.at, hits.values)
        pixels[hits.at] = np.minimum(pixels[hits.at], np.float32(1))
        yield buffer[: len(part)], events.scalars(drawn, part)
        pixels[hits.at] = 0  # the few that are not


def _random(ids: Integers, seed: int, shape: tuple[int, int, int]) -> Iterator[tuple[npt.NDArray[np.float32], Scalars]]:
    """As above, of random words, one event at a time."""
    for sample in ids.tolist():
        image = random_bytes.floats(random_bytes.source(seed, sample, _IMAGE), math.prod(shape))
        yield image[None], _scalars(_draw_words(seed, sample)[None])


def _draw_words(seed: int, sample: int) -> npt.NDArray[np.uint64]:
    return random_bytes.words(random_bytes.source(seed, sample, _EVENT), len(SCALARS))


def _random_labels(seed: int, ids: Integers) -> Integers:
    return np.array([_draw_words(seed, sample)[0] & np.uint64(1) for sample in ids.tolist()], np.int64)


LABELS = {PHYSICAL: events.labels, RANDOM: _random_labels}


def _scalars(words: npt.NDArray[np.uint64]) -> Scalars:
    """Random words [samples, 8] -> plausible values of each scalar dataset, by exact arithmetic only."""
    signal = (words[:, 0] & 1).astype("<i4")
    normweight = ((words[:, 1] >> 40) + 1).astype("<f4") / np.float32(2**24)  # (0, 1], 24 bits: exact
    return {
        "label": signal,
        "weight": normweight * np.float32(_LARGEST_WEIGHT),
        "normweight": normweight,
        "psr": (words[:, 2] & 1).astype("<i4"),
        "mg": signal.astype("<f4") * np.float32(events.GLUINO),
        "mn": signal.astype("<f4") * np.float32(events.NEUTRALINO),
        "jz": (events.FIRST_SLICE + ((words[:, 3] >> 32) * events.SLICES >> 32)).astype("<i4") * (1 - signal),
        "eid": (words[:, 4] >> 33).astype("<i4"),
    }
