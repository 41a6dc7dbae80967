"""What the bytes of one workload's dataset are: files, samples and the fields inside a sample."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Extents = npt.NDArray[np.int64]
Checksums = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Field:
    """One stored piece of a sample, contiguous in its file: the finest unit a view can pick.

    `shape` is the shape of one sample, in `dtype`; (-1,) where the length differs from sample to sample.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FileSpec:
    """One file to be: its path inside the dataset folder and the samples [first, first + samples) it holds."""

    name: str
    first: int
    samples: int


@dataclass(frozen=True)
class Written:
    """Where the samples of one written file lie, and what they are.

    extents: int64 [samples, fields, 3] = offset, stored bytes, delivered bytes. The last two differ only where
    the container compresses: then the stored extent must be decoded to give the delivered bytes.
    checksums: uint32 [samples, fields], CRC32C of the delivered bytes.
    """

    extents: Extents
    checksums: Checksums


@dataclass(frozen=True)
class Layout:
    """The published shape of a dataset; counts are free, the shape of a file is not.

    `write(path, spec, seed)` writes one whole file and says where its samples lie; every sample is a pure
    function of (layout, seed, sample id). `file_bytes` is the stored size of a file, exact or (ImageNet,
    GZIP) the mean. `auxiliary` names files without samples (CDB's stats.h5) and their writers `(path, seed)`.
    All callables are picklable (module-level functions or partials of them): files are written by processes.
    """

    workload: str
    variant: str
    container: str  # a name of datagen.formats.CONTAINERS: "hdf5", "tfrecord", "tfrecord-gzip"
    fields: tuple[Field, ...]
    full_files: int  # files of the published training set
    samples_per_file: int  # of a typical file; spec_files gives each file's own count
    file_bytes: int
    source: str  # where the layout is published
    tiny: bool  # sample shapes shrunk for smoke tests: never a measurement
    spec_files: Callable[[int], tuple[FileSpec, ...]]  # number of files -> their specs, ids from 0 up
    write: Callable[[Path, FileSpec, int], Written]
    auxiliary: Mapping[str, Callable[[Path, int], None]]

    @property
    def sample_bytes(self) -> float:
        """Mean stored bytes of a sample."""
        return self.file_bytes / self.samples_per_file
