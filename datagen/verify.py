"""Every byte of a dataset against what was written: sizes and the CRC32C of every field."""

import os
from pathlib import Path

import numpy as np
from crc32c import crc32c

from dlio_bench.datagen.dataset import Dataset, missing_or_resized
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.formats.container import Container
from dlio_bench.datagen.manifest import FileEntry
from dlio_bench.errors import DataError


def verify_files(dataset: Dataset) -> list[str]:
    """One line for each damaged file, naming it and its first damaged field; empty when every byte is as written."""
    problems = missing_or_resized(dataset)
    if problems:
        return problems
    container = CONTAINERS[dataset.manifest.container]
    for number, entry in enumerate(dataset.manifest.files):
        problem = _damage(dataset, dataset.path(number), entry, container)
        if problem:
            problems.append(problem)
    for auxiliary in dataset.manifest.auxiliary:
        path = dataset.folder / auxiliary.name
        if crc32c(path.read_bytes()) != auxiliary.crc32c:
            problems.append(f"{path} does not match its CRC32C")
    return problems


def _damage(dataset: Dataset, path: Path, entry: FileEntry, container: Container) -> str | None:
    names = [field.name for field in dataset.manifest.fields]
    ids = np.arange(entry.first, entry.first + entry.samples)
    _, offsets, stored, delivered = dataset.locate(ids, names)
    expected = dataset.checksums(ids, names)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for row, sample in enumerate(ids):
            for column, name in enumerate(names):
                content = os.pread(handle, int(stored[row, column]), int(offsets[row, column]))
                if container.decode is not None:
                    out = bytearray(int(delivered[row, column]))
                    try:
                        container.decode(memoryview(content), memoryview(out))
                    except DataError as error:
                        return f"{path}: sample {sample}, field '{name}' does not decode: {error}"
                    content = bytes(out)
                if crc32c(content) != expected[row, column]:
                    return f"{path}: sample {sample}, field '{name}' does not match its CRC32C"
    finally:
        os.close(handle)
    return None
