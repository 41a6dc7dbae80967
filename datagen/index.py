"""A manifest for files that others made: their layout checked, their extents and checksums read from them."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from crc32c import crc32c
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.formats import CONTAINERS, hdf5
from dlio_bench.datagen.formats.container import Container, open_container
from dlio_bench.datagen.layout import Extents, Field, Layout, WrittenFile, as_declared
from dlio_bench.datagen.manifest import (
    NAME,
    SCHEMA,
    FileEntry,
    Manifest,
    complete,
    description_digest,
    encode_extents,
    field_bytes,
    from_json,
    manifest_of,
    sha256,
)
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy

INDEXED = "indexed"  # stands for the fill: nobody asked for one, the files were there


class Indexed(Struct, frozen=True):
    """One file as it was found: its size, where its samples lie, and why it cannot be served (then without them)."""

    name: str
    size: int
    written: WrittenFile | None
    refusal: str | None = None


def candidates(folder: Path, layout: Layout) -> tuple[list[str], list[str]]:
    """(names that may be files of samples, others), relative to `folder`, sorted. OSError."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    visible = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    names = [str(path) for path in visible if path.suffix != ".npy" and path.name != NAME]
    endings = CONTAINERS[layout.container].endings
    fitting = {
        name
        for name in names
        if Path(name).suffix.lower() in endings
        and name not in layout.auxiliary
        and (Path(name).suffix or "-of-" in name)
    }
    return [name for name in names if name in fitting], [name for name in names if name not in fitting]


def as_stored(folder: Path, layout: Layout, names: Sequence[str]) -> Layout:
    """The layout with the fields that files have: without optional ones that a file lacks, with integers as stored."""
    types_of = CONTAINERS[layout.container].types_of
    if types_of is None:
        return layout
    every_file = [types_of(folder / name, [field.name for field in layout.fields]) for name in names]
    readable = [types for types in every_file if types is not None]
    fields = []
    for field in layout.fields:
        if field.name in layout.optional and not all(field.name in types for types in readable):
            continue
        stored = replace(
            field, dtype=next((types[field.name] for types in readable if field.name in types), field.dtype)
        )
        fields.append(stored if as_declared(stored, field) else field)
    return replace(layout, fields=tuple(fields))


def examine(
    folder: Path, container: str, fields: Sequence[Field], name: str, fault: Callable[[bytes], str | None] | None = None
) -> Indexed:
    """Read one file whole: its extents by its own metadata, its checksums from its bytes. `fault`: see Layout."""
    path = folder / name
    try:
        size = path.stat().st_size
        measure = CONTAINERS[container].measure or partial(_measure_file, container=CONTAINERS[container], fault=fault)
        return Indexed(name, size, measure(path, fields))
    except DataError as error:
        return Indexed(name, 0, None, str(error))
    except OSError as error:
        return Indexed(name, 0, None, f"{path} cannot be read: {error.strerror or error}.")


def index(folder: Path, layout: Layout, files: Sequence[Indexed], splits: Sequence[str]) -> Dataset:
    """Write the manifest of `files`, every one of them served, and open the dataset. `splits` names the split of each.

    UsageError if the folder has a manifest that `index` did not write. OSError.
    """
    _require_no_dataset(folder)
    order = {split.name: place for place, split in enumerate(layout.splits)}
    names = dict(zip([file.name for file in files], splits, strict=True))
    sorted_files = sorted(files, key=lambda file: (order[names[file.name]], file.name))
    entries: list[FileEntry] = []
    written: list[WrittenFile] = []
    first = 0
    for file in sorted_files:
        assert file.written is not None
        samples = len(file.written.checksums)
        entries.append(FileEntry(file.name, first, samples, file.size, names[file.name]))
        written.append(file.written)
        first += samples
    auxiliary = {name: write for name, write in layout.auxiliary.items() if (folder / name).is_file()}
    here = replace(layout, auxiliary=auxiliary, fields=tuple(_field(layout, written)), fill=INDEXED)
    manifest = replace(manifest_of(here, entries, folder, seed=0, spec=""), generator=None)
    manifest = replace(manifest, spec=description_digest(manifest))
    complete(folder, manifest, written)
    return open_dataset(folder)


def differences(layout: Layout, published: Layout, indexed: Iterable[Indexed], splits: Sequence[str]) -> list[str]:
    """Where the files are not as published, one line each: their fields, number, samples, the length of their samples.

    layout: as the files have it.
    """
    lines = []
    stored = {field.name: field.dtype for field in layout.fields}
    if absent := [field.name for field in published.fields if field.name not in stored]:
        lines.append(f"without {', '.join(absent)}, which no reader needs")
    lines += [
        f"'{field.name}' holds {stored[field.name]} instead of {field.dtype}"
        for field in published.fields
        if stored.get(field.name, field.dtype) != field.dtype
    ]
    by_split = {
        split.name: [file for file, name in zip(indexed, splits, strict=True) if name == split.name]
        for split in layout.splits
    }
    for split in layout.splits:
        files_of_split = by_split[split.name]
        if len(files_of_split) != split.full_files:
            lines.append(f"{split.name}: {len(files_of_split)} files instead of the published {split.full_files}")
        counts = {len(file.written.checksums) for file in files_of_split if file.written is not None}
        if odd := sorted(counts - {split.samples_per_file, split.samples_per_file + 1}):
            lines.append(f"{split.name}: files of {_abbreviate(odd)} samples instead of {split.samples_per_file}")
    for column, field in enumerate(layout.fields):
        if -1 in field.shape:
            continue
        expected = field_bytes(field)
        files = [file for files in by_split.values() for file in files if file.written is not None]
        lengths = {int(n) for file in files if file.written for n in np.unique(file.written.extents[:, column, 2])}
        if odd := sorted(lengths - {expected}):
            lines.append(f"'{field.name}': samples of {_abbreviate(odd)} bytes instead of {expected}")
    return lines


def _measure_file(
    path: Path, fields: Sequence[Field], *, container: Container, fault: Callable[[bytes], str | None] | None
) -> WrittenFile:
    located = container.locate(path, fields)
    if not len(located):
        raise DataError(f"{path} holds no sample.")
    delivered = located[:, :, 1] if container.plain else np.broadcast_to([*map(field_bytes, fields)], located.shape[:2])
    checksums = np.empty(located.shape[:2], dtype=np.uint32)
    with open_container(path, container, [field.name for field in fields]) as content_of:
        for place in np.ndindex(checksums.shape):
            offset, stored = located[place].tolist()
            content = content_of(place[1], offset, stored, int(delivered[place]))
            checksums[place] = crc32c(content)
            if fault is not None and (reason := fault(content)):
                raise DataError(f"{path}: sample {place[0]} cannot be decoded: {reason}")
    if container.checksums is not None:
        contradicted = np.flatnonzero((container.checksums(path, located) != checksums).any(axis=1))
        if len(contradicted):
            raise DataError(
                f"{path}: {len(contradicted)} of its {len(located)} records contradict their own CRC32C, the first at "
                f"byte {located[contradicted[0], 0, 0]}."
            )
    return WrittenFile(np.concatenate([located, delivered[:, :, None]], axis=2), checksums)


def _field(layout: Layout, written: Sequence[WrittenFile]) -> Iterable[Field]:
    """The fields as they were found: records of another length than published have no fixed one."""
    for column, field in enumerate(layout.fields):
        as_declared = -1 in field.shape or all((w.extents[:, column, 2] == field_bytes(field)).all() for w in written)
        yield field if as_declared else replace(field, shape=(-1,))


def _abbreviate(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:3])) + (f" and {len(values) - 3} other counts of" if len(values) > 3 else "")


def _require_no_dataset(folder: Path) -> None:
    path = folder / NAME
    if path.exists() and from_json(path.read_bytes(), path).generator is not None:
        raise UsageError(f"{folder} holds a generated dataset with a manifest of its own: there is nothing to index.")


# Files of no known workload as a dataset: a sample a file, or the rows of named HDF5 datasets. Nothing is written.
#
# Where samples lie is taken from the files' own metadata, so that no sample is read, and none has a checksum.

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


def open_files(place: Path, names: Sequence[str] = (), patterns: Sequence[str] = ()) -> Dataset:
    """The dataset of a file, or of the files below a folder, in the order of their names.

    names: HDF5 datasets, with the samples along their first axis; without them each file is one sample, whose field is
    CONTENT. patterns: of the files that are meant, as `PurePath.match` takes them; without them all that are neither
    hidden nor about the others (README, LICENSE), which must be of one kind. UsageError, DataError and
    EnvironmentFailure that name the file.
    """
    try:
        folder, paths = _files_in(place, patterns)
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
            return _dataset_of_files(folder, paths, RAW, (Field(CONTENT, "|u1", (-1,)),))
        fields = hdf5.fields_of(paths[0], names)
        try:
            return _dataset_of_files(folder, paths, HDF5, fields)
        except DataError:  # what plain reads cannot serve, the library may
            by_library = CONTAINERS[HDF5].by_library
            assert by_library is not None
            return _dataset_of_files(folder, paths, by_library, fields)
    except OSError as error:
        raise EnvironmentFailure(
            f"{error.filename or place} cannot be read: {error.strerror}. {remedy(error)}."
        ) from error


def _files_in(place: Path, patterns: Sequence[str]) -> tuple[Path, list[Path]]:
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


def _dataset_of_files(folder: Path, paths: Sequence[Path], container: str, fields: tuple[Field, ...]) -> Dataset:
    locate: Callable[[Path, Sequence[Field]], Extents] = CONTAINERS[container].locate
    lengths = np.array([0 if -1 in field.shape else field_bytes(field) for field in fields])
    entries: list[FileEntry] = []
    written: list[WrittenFile] = []
    first = 0
    for path in paths:
        located = locate(path, fields)
        if not len(located):
            raise DataError(f"{path} holds no sample. Move it away, or give the files that hold samples.")
        delivered = np.where(lengths > 0, lengths, located[:, :, 1])
        written.append(WrittenFile(np.concatenate([located, delivered[:, :, None]], axis=2), np.zeros(0, np.uint32)))
        entries.append(FileEntry(str(path.relative_to(folder)), first, len(located), path.stat().st_size))
        first += len(located)
    encoding, table = encode_extents(written)
    manifest = Manifest(
        schema=SCHEMA, spec="", workload="", variant="", container=container, tiny=False, fill=INDEXED, seed=0,
        generator=None, source="", fields=fields, files=tuple(entries), auxiliary=(), encoding=encoding,
        extents_sha256=sha256(table.tobytes()), checksums_sha256="", fingerprint={},
    )  # fmt: skip
    digest = sha256(json.dumps(msgspec.to_builtins(manifest), sort_keys=True).encode())
    firsts = np.array([entry.first for entry in entries], dtype=np.int64)
    no_checksums = np.broadcast_to(np.uint32(0), (first, len(fields)))
    return Dataset(folder, manifest, digest, firsts, table, no_checksums)
