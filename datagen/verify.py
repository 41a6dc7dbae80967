"""Every byte of a dataset against what was written: sizes, checksums, the containers' own words, samples made anew."""

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.formats.container import Container, Opened
from dlio_bench.datagen.layout import RANDOM, FileSpec, Layout, Written
from dlio_bench.datagen.manifest import GENERATOR, FileEntry, fingerprint
from dlio_bench.errors import DataError


@dataclass(frozen=True)
class Remake:
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


def remakable(dataset: Dataset) -> bool:
    """Whether samples made here must equal the dataset's: integers always do, floating point on like machines."""
    manifest = dataset.manifest
    return manifest.generator == GENERATOR and (manifest.fill == RANDOM or dict(manifest.fingerprint) == fingerprint())


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
        return (
            _layout_damage(dataset, path, entry, container)
            or _content_damage(dataset, path, entry, container)
            or (_remade_damage(dataset, path, entry, remake) if remake else None)
            or (_undecodable(dataset, path, entry, fault) if fault and dataset.manifest.generator is None else None)
        )
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"


def _layout_damage(dataset: Dataset, path: Path, entry: FileEntry, container: Container) -> str | None:
    """The container's own metadata must lead to the extents of the manifest."""
    names = [field.name for field in dataset.manifest.fields]
    try:
        located = container.locate(path, dataset.manifest.fields)
    except DataError as error:
        return str(error)
    if len(located) != entry.samples:
        return f"{path} holds {len(located)} samples instead of {entry.samples}"
    ids = np.arange(entry.first, entry.first + entry.samples)
    _, offsets, stored, _ = dataset.locate(ids, names)
    if container.checksums is not None and (container.checksums(path, located) != dataset.checksums(ids, names)).any():
        return f"{path}: a CRC32C that the file itself holds contradicts its record"
    wrong = np.argwhere((located[:, :, 0] != offsets) | (located[:, :, 1] != stored))
    if len(wrong):
        row, column = wrong[0]
        return (
            f"{path}: its metadata place sample {ids[row]}, field '{names[column]}' at byte {located[row, column, 0]} "
            f"({located[row, column, 1]} bytes) instead of {offsets[row, column]} ({stored[row, column]} bytes)"
        )
    return None


def _content_damage(dataset: Dataset, path: Path, entry: FileEntry, container: Container) -> str | None:
    names = [field.name for field in dataset.manifest.fields]
    ids = np.arange(entry.first, entry.first + entry.samples)
    _, offsets, stored, delivered = dataset.locate(ids, names)
    written = Written(np.stack([offsets, stored, delivered], axis=2), dataset.checksums(ids, names))
    return content_damage(path, entry.first, names, written, container)


def content_damage(path: Path, first: int, names: Sequence[str], written: Written, container: Container) -> str | None:
    """The first field of a file, in a line that names it, whose delivered bytes do not have their CRC32C. OSError.

    `first` is the id of the file's first sample, `names` are the fields in the order of `written`.
    """
    if container.library is not None:
        return _library_damage(container.library(path), path, first, names, written)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for row, extents in enumerate(written.extents.tolist()):
            for column, (offset, stored, delivered) in enumerate(extents):
                content = os.pread(handle, stored, offset)
                if container.decode is not None:
                    out = bytearray(delivered)
                    try:
                        container.decode(memoryview(content), memoryview(out))
                    except DataError as error:
                        return f"{path}: sample {first + row}, field '{names[column]}' does not decode: {error}"
                    content = bytes(out)
                if crc32c(content) != written.checksums[row, column]:
                    return f"{path}: sample {first + row}, field '{names[column]}' does not match its CRC32C"
    finally:
        os.close(handle)
    return None


def _undecodable(dataset: Dataset, path: Path, entry: FileEntry, fault: Callable[[bytes], str | None]) -> str | None:
    ids = np.arange(entry.first, entry.first + entry.samples)
    _, offsets, stored, _ = dataset.locate(ids, [field.name for field in dataset.manifest.fields])
    with path.open("rb", buffering=0) as file:
        for sample, offset, length in zip(ids.tolist(), offsets[:, 0].tolist(), stored[:, 0].tolist(), strict=True):
            if reason := fault(os.pread(file.fileno(), length, offset)):
                return f"{path}: sample {sample} cannot be decoded: {reason}"
    return None


def _library_damage(opened: Opened, path: Path, first: int, names: Sequence[str], written: Written) -> str | None:
    try:
        for row, extents in enumerate(written.extents.tolist()):
            for column, (place, _, delivered) in enumerate(extents):
                content = bytearray(delivered)
                opened.fetch(names[column], place, memoryview(content))
                if crc32c(content) != written.checksums[row, column]:
                    return f"{path}: sample {first + row}, field '{names[column]}' does not match its CRC32C"
    except DataError as error:
        return str(error)
    finally:
        opened.close()
    return None


def _remade_damage(dataset: Dataset, path: Path, entry: FileEntry, remake: Remake) -> str | None:
    """The file made anew from layout, seed and sample ids must have the checksums of the manifest."""
    names = [field.name for field in dataset.manifest.fields]
    ids = np.arange(entry.first, entry.first + entry.samples)
    spec = FileSpec(entry.name, entry.first, entry.samples, entry.split)
    with tempfile.TemporaryDirectory(prefix="remade-", dir=remake.folder) as folder:
        written = remake.layout.write(Path(folder) / Path(entry.name).name, spec, dataset.manifest.seed)
    wrong = np.argwhere(written.checksums != dataset.checksums(ids, names))
    if len(wrong):
        row, column = wrong[0]
        return (
            f"{path}: sample {ids[row]}, field '{names[column]}' is not what its layout and seed "
            f"{dataset.manifest.seed} make"
        )
    return None


def chosen(dataset: Dataset, fraction: float) -> Sequence[int]:
    """Numbers of the files to be made anew: evenly spread, so many that they hold `fraction` of the samples or more."""
    files = len(dataset.manifest.files)
    count = math.ceil(files * fraction)
    return [number * files // count for number in range(count)]
