"""What a reader must know of a container: whether a stored extent already is the delivered bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dlio_bench.datagen.layout import Checksums, Extents, Field


class Opened(Protocol):
    """A file opened by its container's library."""

    def fetch(self, field: str, place: int, out: memoryview) -> None:
        """Fill `out` with one field of the sample at this place. DataError naming the file."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True)
class Container:
    """One way of storing samples in files.

    decode: None where a stored extent is the delivered bytes. Otherwise `decode(stored, out)` fills `out`, which
    has exactly the delivered length, from one stored extent, and raises DataError when that does not work out.

    locate: where the container's own metadata say that the fields of a file lie: int64 [samples, fields, 2] = offset,
    stored bytes. DataError, naming the file, when it is not such a container or does not have these fields as they are
    declared. OSError. None where a file is one sample and has no metadata.

    library: None where stored extents are bytes of the file. Otherwise samples can only be had through the container's
    own library: an extent's offset is then a place that `library(path).fetch` understands, and its stored bytes are the
    sample's share of what the file takes.

    checksums: the CRC32C, uint32 [samples, fields], that the container itself holds of what `locate` found. None where
    it holds none. OSError.
    """

    decode: Callable[[memoryview, memoryview], None] | None
    locate: Callable[[Path, Sequence[Field]], Extents] | None = None
    library: Callable[[Path], "Opened"] | None = None
    checksums: Callable[[Path, Extents], Checksums] | None = None
