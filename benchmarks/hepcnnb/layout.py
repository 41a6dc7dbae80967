"""HEPCNNB's files: nine contiguous HDF5 datasets at the root, 709 training images of 3 x 224 x 224 each."""

import math
import os
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.formats import hdf5
from dlio_bench.datagen.layout import TRAIN, Field, FileSpec, Layout, Split, Written
from dlio_bench.whole_files import write_at

FULL_SHAPE, TINY_SHAPE = (3, 224, 224), (3, 16, 16)
FULL_SAMPLES, TINY_SAMPLES = 709, 64
FULL_BYTES, TINY_BYTES = 426_926_240, 204_800  # as HDF5 lays these out; HDFView shows 416 918 K for the published files

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
_GLUINO, _NEUTRALINO = 1400.0, 850.0  # the signal GG_RPV10_1400_850
_SLICES = 3, 11
_LARGEST_WEIGHT = 8.0  # ours: a power of two keeps the quotient exact


def layout(tiny: bool, fill: str) -> Layout:
    """Variant "224": the files hep_train_chunk<N>.h5 of the I/O study."""
    shape, samples = (TINY_SHAPE, TINY_SAMPLES) if tiny else (FULL_SHAPE, FULL_SAMPLES)
    return Layout(
        workload="hepcnnb",
        variant="224",
        container="hdf5",
        fields=(Field("data", "<f4", shape), *(Field(name, dtype, ()) for name, dtype in SCALARS.items())),
        splits=(
            Split(
                name=TRAIN,
                full_files=1024,
                full_samples=1024 * samples,
                samples_per_file=samples,
                file_bytes=TINY_BYTES if tiny else FULL_BYTES,
                payload_bytes=4 * (math.prod(shape) + len(SCALARS)),
                spec_files=partial(spec_files, samples=samples),
            ),
        ),
        source=SOURCE,
        tiny=tiny,
        fill=fill,
        write=partial(write, shape=shape),
        auxiliary={},
    )


def spec_files(files: int, *, samples: int) -> tuple[FileSpec, ...]:
    """hep_train_chunk0.h5, hep_train_chunk1.h5, ..."""
    return tuple(FileSpec(f"hep_train_chunk{n}.h5", n * samples, samples) for n in range(files))


def write(path: Path, spec: FileSpec, seed: int, *, shape: tuple[int, int, int]) -> Written:
    """One file, image by image: memory stays at one image however large the file. OSError."""
    offsets = hdf5.allocate(
        path,
        [("data", "<f4", (spec.samples, *shape)), *((name, dtype, (spec.samples,)) for name, dtype in SCALARS.items())],
    )
    pixels = shape[0] * shape[1] * shape[2]
    events = np.empty((spec.samples, len(SCALARS)), dtype=np.uint64)
    checksums = np.empty((spec.samples, 1 + len(SCALARS)), dtype=np.uint32)
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for row, sample in enumerate(range(spec.first, spec.first + spec.samples)):
            image = random_bytes.floats(random_bytes.source(seed, sample, _IMAGE), pixels)
            write_at(handle, image, offsets["data"] + row * image.nbytes)
            checksums[row, 0] = crc32c(image.data)
            events[row] = random_bytes.words(random_bytes.source(seed, sample, _EVENT), len(SCALARS))
        for column, (name, values) in enumerate(_scalars(events).items(), start=1):
            write_at(handle, values, offsets[name])
            checksums[:, column] = [crc32c(value.data) for value in values]
    finally:
        os.close(handle)
    extents = np.empty((spec.samples, 1 + len(SCALARS), 3), dtype=np.int64)
    extents[:, :, 1:] = np.array([pixels * 4] + [4] * len(SCALARS))[:, None]
    starts = np.array([offsets[name] for name in ("data", *SCALARS)])
    extents[:, :, 0] = starts + np.arange(spec.samples)[:, None] * extents[0, :, 1]
    return Written(extents, checksums)


def _scalars(events: npt.NDArray[np.uint64]) -> dict[str, npt.NDArray[np.int32] | npt.NDArray[np.float32]]:
    """Random words [samples, 8] -> plausible values of each scalar dataset, by exact arithmetic only."""
    signal = (events[:, 0] & 1).astype("<i4")
    normweight = ((events[:, 1] >> 40) + 1).astype("<f4") / np.float32(2**24)  # (0, 1], 24 bits: exact
    first, last = _SLICES
    return {
        "label": signal,
        "weight": normweight * np.float32(_LARGEST_WEIGHT),
        "normweight": normweight,
        "psr": (events[:, 2] & 1).astype("<i4"),
        "mg": signal.astype("<f4") * np.float32(_GLUINO),
        "mn": signal.astype("<f4") * np.float32(_NEUTRALINO),
        "jz": (first + ((events[:, 3] >> 32) * (last - first + 1) >> 32)).astype("<i4") * (1 - signal),
        "eid": (events[:, 4] >> 33).astype("<i4"),
    }
