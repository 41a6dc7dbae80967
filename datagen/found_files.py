"""Files of no known workload as a dataset: a sample a file, or the rows of named HDF5 datasets. Nothing is written.

Where samples lie is taken from the files' own metadata, so that no sample is read, and none has a checksum.
"""

import json
import re
from collections import Counter
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
# files about the samples, which are none
ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|changelog|authors|citation)(\.(txt|md|rst|cff))?", re.IGNORECASE)
IMAGES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"}
_HDF5_INSTEAD = "Write them as HDF5 datasets, the samples along the first axis, which dlio_bench.load takes by fields="
# files that hold many samples, or parts of one, which are not told apart here: what to do instead
MANY = {
    re.compile(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$"): "a tar archive of many samples. Unpack it, so that each file is one",
    re.compile(r"\.parquet$"): f"a Parquet file of many samples. {_HDF5_INSTEAD}",
    re.compile(r"\.zarr/|(^|/)(\.zarray|zarr\.json)$"): f"of a Zarr store: its files are parts. {_HDF5_INSTEAD}",
}


def found(place: Path, names: Sequence[str] = (), patterns: Sequence[str] = ()) -> Dataset:
    """The dataset of a file, or of the files below a folder, in the order of their names.

    names: HDF5 datasets, with the samples along their first axis; without them each file is one sample, whose field is
    CONTENT. patterns: of the files that are meant, as `PurePath.match` takes them; without them all that are neither
    hidden nor about the others (README, LICENSE), which must be of one kind. UsageError, DataError and
    EnvironmentFailure that name the file.
    """
    try:
        folder, paths = _files(place, patterns)
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
            _require_samples(folder, paths, chosen=bool(patterns))
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


def _files(place: Path, patterns: Sequence[str]) -> tuple[Path, list[Path]]:
    """The folder, and the files in it that are meant."""
    if place.is_file():
        return place.parent.absolute(), [place.absolute()]
    if not place.is_dir():
        raise UsageError(f"There is no file or folder {place}. Give a dataset, a folder of files, or a file.")
    folder = place.absolute()
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != NAME)
    files = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    if patterns:
        chosen = [path for path in files if any(path.match(pattern) for pattern in patterns)]
        if files and not chosen:
            raise UsageError(f"{place} holds no file that fits files={[*patterns]!r}. One of its files: {files[0]}.")
    else:
        chosen = [path for path in files if not ABOUT.fullmatch(path.name)]
    return folder, [folder / path for path in chosen]


def _require_samples(folder: Path, paths: Sequence[Path], *, chosen: bool) -> None:
    """UsageError for files that are not one sample each; unless they were `chosen`, also for files of several kinds."""
    arrays = [path for parent in {path.parent for path in paths} if (path := parent / ".zarray").exists()]
    for path in (*paths, *arrays):
        if told := of_many(path.as_posix()):
            raise UsageError(f"{path} is {told}.")
    endings = Counter(map(_ending, paths))
    if not chosen and len({"image" if ending in IMAGES else ending for ending in endings}) > 1:
        told = ", ".join(f"{count} {ending or 'without one'}" for ending, count in endings.most_common(5))
        raise UsageError(
            f"{folder} holds files with several endings: {told}. Say which of them are samples, such as "
            f'files="*{endings.most_common(1)[0][0]}", or files="*" for all.'
        )


def of_many(name: str) -> str | None:
    """What a file of this name is, and what to do instead, if it holds many samples or parts of one."""
    return next((told for pattern, told in MANY.items() if pattern.search(name.lower())), None)


def _ending(path: Path) -> str:
    """In lower case; none where it is no word, such as the number of a time step."""
    ending = path.suffix.lower()
    return ending if re.fullmatch(r"\.[a-z]\w{0,7}", ending) else ""


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
