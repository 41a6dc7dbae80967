"""Files of no known workload as a dataset: a sample a file, or the rows of named HDF5 datasets. Nothing is written.

Where samples lie is taken from the files' own metadata, so that no sample is read, and none has a checksum.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from dlio_bench.datagen import extents
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS, hdf5
from dlio_bench.datagen.index import INDEXED
from dlio_bench.datagen.layout import Extents, Field, Written
from dlio_bench.datagen.manifest import NAME, SCHEMA, FileEntry, Manifest, sha256
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy

CONTENT = "content"  # the one field of a sample that is a whole file
RAW, HDF5 = "raw", "hdf5"


def found(place: Path, names: Sequence[str] = ()) -> Dataset:
    """The dataset of a file, or of all files below a folder but hidden ones, in the order of their names.

    names: HDF5 datasets, with the samples along their first axis; without them each file is one sample, whose field is
    CONTENT. UsageError, DataError and EnvironmentFailure that name the file.
    """
    try:
        folder, paths = _files(place)
        is_hdf5 = [path.suffix.lower() in CONTAINERS[HDF5].endings for path in paths]
        if names:
            paths = [path for path, fits in zip(paths, is_hdf5, strict=True) if fits]
        if not paths:
            raise UsageError(f"{place} holds no {'HDF5 ' if names else ''}file. Give the folder that holds the files.")
        if not names and all(is_hdf5):
            raise UsageError(
                f"{place} holds HDF5 files without a manifest. Name their datasets that make a sample with fields=, or "
                "make a dataset of the files with dlio-bench index."
            )
        if not names:
            return _dataset(folder, paths, RAW, (Field(CONTENT, "|u1", (-1,)),))
        fields = hdf5.fields_of(paths[0], names)
        try:
            return _dataset(folder, paths, HDF5, fields)
        except DataError:  # what plain reads cannot serve, the library may
            by_library = CONTAINERS[HDF5].by_library
            assert by_library is not None
            return _dataset(folder, paths, by_library, fields)
    except OSError as error:
        raise EnvironmentFailure(
            f"{error.filename or place} cannot be read: {error.strerror}. {remedy(error)}."
        ) from error


def _files(place: Path) -> tuple[Path, list[Path]]:
    """The folder, and the files in it that are meant."""
    if place.is_file():
        return place.parent.absolute(), [place.absolute()]
    if not place.is_dir():
        raise UsageError(f"There is no file or folder {place}. Give a dataset, a folder of files, or a file.")
    folder = place.absolute()
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != NAME)
    return folder, [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def _dataset(folder: Path, paths: Sequence[Path], container: str, fields: tuple[Field, ...]) -> Dataset:
    locate: Callable[[Path, Sequence[Field]], Extents] = CONTAINERS[container].locate
    lengths = np.array([0 if -1 in field.shape else _length(field) for field in fields])
    entries: list[FileEntry] = []
    written: list[Written] = []
    first = 0
    for path in paths:
        located = locate(path, fields)
        if not len(located):
            raise DataError(f"{path} holds no sample. Move it away, or give the files that hold samples.")
        delivered = np.where(lengths > 0, lengths, located[:, :, 1])
        written.append(Written(np.concatenate([located, delivered[:, :, None]], axis=2), np.zeros(0, np.uint32)))
        entries.append(FileEntry(str(path.relative_to(folder)), first, len(located), path.stat().st_size))
        first += len(located)
    encoding, table = extents.encode(written)
    manifest = Manifest(
        schema=SCHEMA, spec="", workload="", variant="", container=container, tiny=False, fill=INDEXED, seed=0,
        generator=None, source="", fields=fields, files=tuple(entries), auxiliary=(), encoding=encoding,
        extents_sha256=sha256(table.tobytes()), checksums_sha256="", fingerprint={},
    )  # fmt: skip
    digest = sha256(json.dumps(msgspec.to_builtins(manifest), sort_keys=True).encode())
    firsts = np.array([entry.first for entry in entries], dtype=np.int64)
    no_checksums = np.broadcast_to(np.uint32(0), (first, len(fields)))
    return Dataset(folder, manifest, digest, firsts, table, no_checksums)


def _length(field: Field) -> int:
    return int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
