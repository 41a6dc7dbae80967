"""Every byte of a dataset against what was written: sizes, checksums, the containers' own words, samples made anew."""

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c
from msgspec import Struct

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.formats.container import Container, open_container
from dlio_bench.datagen.layout import RANDOM, FileSpec, Layout, WrittenFile
from dlio_bench.datagen.manifest import FileEntry, fingerprint
from dlio_bench.errors import DataError


class Remake(Struct, frozen=True):
    """How files are made anew for comparison, in a scratch `folder` on local memory or disk."""

    layout: Layout
    folder: Path


def auxiliary_damage(dataset: Dataset) -> list[str]:
    """One line for each file without samples that is not as it was written."""
    problems = []
    for auxiliary in dataset.manifest.auxiliary:
        path = dataset.folder / auxiliary.name
        try:
            if crc32c(path.read_bytes()) != auxiliary.crc32c:
                problems.append(f"{path} does not match its CRC32C")
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
    return problems


def remakable(dataset: Dataset, layout: Layout) -> bool:
    """Whether samples made here must equal the dataset's: integers always do, floating point on like machines."""
    manifest = dataset.manifest
    same = manifest.fill == RANDOM or dict(manifest.fingerprint) == fingerprint()
    return manifest.generator == layout.generator and same


def damage(
    dataset: Dataset, number: int, remake: Remake | None = None, fault: Callable[[bytes], str | None] | None = None
) -> str | None:
    """What is wrong with a file, in a line that names it: its size, container, content, or what it is made to hold.

    `fault`: see Layout; it is asked about samples of others.
    """
    entry, path = dataset.manifest.files[number], dataset.path(number)
    container = CONTAINERS[dataset.manifest.container]
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"{path} has {size} bytes instead of {entry.bytes}"
        written = dataset.describe_file(number)
        return (
            _layout_damage(dataset, path, entry, container, written)
            or content_damage(path, entry.first, dataset.field_names, written, container)
            or (_remade_damage(dataset, path, entry, remake, written) if remake else None)
            or (_undecodable(path, entry, fault, written) if fault and dataset.manifest.generator is None else None)
        )
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"


def _layout_damage(
    dataset: Dataset, path: Path, entry: FileEntry, container: Container, written: WrittenFile
) -> str | None:
    """The container's own metadata must lead to the extents of the manifest."""
    try:
        located = container.locate(path, dataset.manifest.fields)
    except DataError as error:
        return str(error)
    if len(located) != entry.samples:
        return f"{path} holds {len(located)} samples instead of {entry.samples}"
    if container.checksums is not None and (container.checksums(path, located) != written.checksums).any():
        return f"{path}: a CRC32C that the file itself holds contradicts its record"
    wrong = np.argwhere((located != written.extents[:, :, :2]).any(axis=2))
    if len(wrong):
        row, column = wrong[0]
        (offset, stored), (expected, expected_stored) = located[row, column], written.extents[row, column, :2]
        return (
            f"{path}: its metadata place {_place(dataset, entry, row, column)} at byte {offset} "
            f"({stored} bytes) instead of {expected} ({expected_stored} bytes)"
        )
    return None


def content_damage(
    path: Path, first: int, names: Sequence[str], written: WrittenFile, container: Container
) -> str | None:
    """The first field of a file, in a line that names it, whose delivered bytes do not have their CRC32C. OSError.

    `first` is the id of the file's first sample, `names` are the fields in the order of `written`.
    """
    with open_container(path, container, names) as content_of:
        for row, extents in enumerate(written.extents.tolist()):
            for column, extent in enumerate(extents):
                place = f"{path}: sample {first + row}, field '{names[column]}'"
                try:
                    content = content_of(column, *extent)
                except DataError as error:
                    return f"{place} does not decode: {error}"
                if crc32c(content) != written.checksums[row, column]:
                    return f"{place} does not match its CRC32C"
    return None


def _undecodable(
    path: Path, entry: FileEntry, fault: Callable[[bytes], str | None], written: WrittenFile
) -> str | None:
    with path.open("rb", buffering=0) as file:
        for row, (offset, length, _) in enumerate(written.extents[:, 0].tolist()):
            if reason := fault(os.pread(file.fileno(), length, offset)):
                return f"{path}: sample {entry.first + row} cannot be decoded: {reason}"
    return None


def _remade_damage(dataset: Dataset, path: Path, entry: FileEntry, remake: Remake, written: WrittenFile) -> str | None:
    """The file made anew from layout, seed and sample ids must have the checksums of the manifest."""
    of_split = [file for file in dataset.manifest.files if file.split == entry.split]
    among = (of_split[0].first, sum(file.samples for file in of_split)) if remake.layout.sorted_by else None
    spec = FileSpec(entry.name, entry.first, entry.samples, entry.split, among)
    with tempfile.TemporaryDirectory(prefix="remade-", dir=remake.folder) as folder:
        remade = remake.layout.write(Path(folder) / Path(entry.name).name, spec, dataset.manifest.seed)
    wrong = np.argwhere(remade.checksums != written.checksums)
    if len(wrong):
        place = _place(dataset, entry, *wrong[0])
        return f"{path}: {place} is not what its layout and seed {dataset.manifest.seed} make"
    return None


def _place(dataset: Dataset, entry: FileEntry, row: int, column: int) -> str:
    return f"sample {entry.first + row}, field '{dataset.field_names[column]}'"


def files_to_remake(dataset: Dataset, fraction: float) -> Sequence[int]:
    """Numbers of the files to be made anew: evenly spread, so many that they hold `fraction` of the samples or more."""
    files = len(dataset.manifest.files)
    count = math.ceil(files * fraction)
    return [number * files // count for number in range(count)]
