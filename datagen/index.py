"""A manifest for files that others made: their layout checked, their extents and checksums read from them."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from crc32c import crc32c
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.datagen.completion import complete, manifest_of
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.formats.container import Container, opened
from dlio_bench.datagen.layout import Field, Layout, Written, as_declared
from dlio_bench.datagen.manifest import NAME, FileEntry, Manifest, description_digest, from_json
from dlio_bench.errors import DataError, UsageError

INDEXED = "indexed"  # stands for the fill: nobody asked for one, the files were there


class Indexed(Struct, frozen=True):
    """One file as it was found: its size, where its samples lie, and why it cannot be served (then without them)."""

    name: str
    size: int
    written: Written | None
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
        measure = CONTAINERS[container].measure or partial(_measured, container=CONTAINERS[container], fault=fault)
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
    written: list[Written] = []
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
            lines.append(f"{split.name}: files of {_some(odd)} samples instead of {split.samples_per_file}")
    for column, field in enumerate(layout.fields):
        if -1 in field.shape:
            continue
        expected = _length(field)
        files = [file for files in by_split.values() for file in files if file.written is not None]
        lengths = {int(n) for file in files if file.written for n in np.unique(file.written.extents[:, column, 2])}
        if odd := sorted(lengths - {expected}):
            lines.append(f"'{field.name}': samples of {_some(odd)} bytes instead of {expected}")
    return lines


def _measured(
    path: Path, fields: Sequence[Field], *, container: Container, fault: Callable[[bytes], str | None] | None
) -> Written:
    located = container.locate(path, fields)
    if not len(located):
        raise DataError(f"{path} holds no sample.")
    delivered = located[:, :, 1] if container.plain else np.broadcast_to([*map(_length, fields)], located.shape[:2])
    checksums = np.empty(located.shape[:2], dtype=np.uint32)
    with opened(path, container, [field.name for field in fields]) as content_of:
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
    return Written(np.concatenate([located, delivered[:, :, None]], axis=2), checksums)


def _field(layout: Layout, written: Sequence[Written]) -> Iterable[Field]:
    """The fields as they were found: records of another length than published have no fixed one."""
    for column, field in enumerate(layout.fields):
        as_declared = -1 in field.shape or all((w.extents[:, column, 2] == _length(field)).all() for w in written)
        yield field if as_declared else replace(field, shape=(-1,))


def _length(field: Field) -> int:
    return int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize


def _some(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:3])) + (f" and {len(values) - 3} other counts of" if len(values) > 3 else "")


def _require_no_dataset(folder: Path) -> None:
    path = folder / NAME
    if path.exists() and _read(path).generator is not None:
        raise UsageError(f"{folder} holds a generated dataset with a manifest of its own: there is nothing to index.")


def _read(path: Path) -> Manifest:
    return from_json(path.read_bytes(), path)
