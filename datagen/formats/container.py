"""What is known of a container: where its samples lie, how they are read, by what names its files are found."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct

from dlio_bench.datagen.layout import Checksums, Extents, Field, WrittenFile
from dlio_bench.errors import DataError

H5PY, TF_DATA, DALI = "h5py", "tf.data", "dali"


class OpenContainer(Protocol):
    """A file opened by its container's library."""

    def fetch(self, field: str, place: int, out: memoryview) -> None:
        """Fill `out` with one field of the sample at this place. DataError naming the file."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Container(Struct, frozen=True):
    """One way of storing samples in files.

    locate: where the container's own metadata say that the fields of a file lie: int64 [samples, fields, 2] = offset,
    stored bytes. DataError, naming the file, when it is not such a container or does not have these fields as they are
    declared. OSError.

    endings: of the names of its files, in lower case, with their dot; `index` looks for them. "" is a file of numbered
    shards, "NAME-00000-of-00128".

    decode: None where a stored extent is the delivered bytes. Otherwise `decode(stored, out)` fills `out`, which
    has exactly the delivered length, from one stored extent, and raises DataError when that does not work out.

    measure: where samples lie and what they are, for what is decoded to lengths that the layout does not fix. It reads
    the file whole. DataError; OSError.

    library: None where stored extents are bytes of the file. Otherwise samples can only be had through the container's
    own library: an extent's offset is then a place that `library(path).fetch` understands, and its stored bytes are the
    sample's share of what the file takes.

    by_library: the name of the container that reads such files through their library, where plain reads cannot serve
    them.

    checksums: the CRC32C, uint32 [samples, fields], that the container itself holds of what `locate` found. None where
    it holds none. OSError.

    read_with: the library that applications read it with, where `bench-readers` can compare it: H5PY, TF_DATA or DALI.

    types_of: the types of the datasets of these names that a file has; None for a file that is no such container.

    tfrecords: the compression of its TFRecords, as TFRecordDataset names it; None where it holds no TFRecords.
    """

    locate: Callable[[Path, Sequence[Field]], Extents]
    endings: tuple[str, ...]
    decode: Callable[[memoryview, memoryview], None] | None = None
    measure: Callable[[Path, Sequence[Field]], WrittenFile] | None = None
    library: Callable[[Path], "OpenContainer"] | None = None
    by_library: str | None = None
    checksums: Callable[[Path, Extents], Checksums] | None = None
    read_with: str | None = None
    types_of: Callable[[Path, Sequence[str]], dict[str, str] | None] | None = None
    tfrecords: str | None = None

    @property
    def plain(self) -> bool:
        """Whether a stored extent is bytes of the file as they are delivered."""
        return self.decode is None and self.library is None


@contextmanager
def open_container(
    path: Path, container: Container, names: Sequence[str]
) -> Iterator[Callable[[int, int, int, int], bytes]]:
    """(column, offset, stored bytes, delivered bytes) -> what is delivered of an open file. DataError; OSError.

    names: the fields, by column.
    """
    if container.library is not None:
        with closing(container.library(path)) as file:

            def fetch_field(column: int, offset: int, _: int, delivered: int) -> bytes:
                out = bytearray(delivered)
                file.fetch(names[column], offset, memoryview(out))
                return bytes(out)

            yield fetch_field
        return
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_field(_: int, offset: int, stored: int, delivered: int) -> bytes:
        content = os.pread(handle, stored, offset)
        if len(content) != stored:
            raise DataError(f"{path} ends before byte {offset + stored}, where its metadata place a sample.")
        if container.decode is None:
            return content
        out = bytearray(delivered)
        container.decode(memoryview(content), memoryview(out))
        return bytes(out)

    try:
        yield read_field
    finally:
        os.close(handle)


def whole_file(path: Path, fields: Sequence[Field]) -> Extents:
    """A file that is one record, with nothing around it, such as a JPEG image: int64 [1, 1, 2]. OSError."""
    del fields  # nothing in the file speaks of them
    return np.array([[[0, path.stat().st_size]]], dtype=np.int64)
