"""What a reader must know of a container: whether a stored extent already is the delivered bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlio_bench.datagen.layout import Extents, Field


@dataclass(frozen=True)
class Container:
    """One way of storing samples in files.

    decode: None where a stored extent is the delivered bytes. Otherwise `decode(stored, out)` fills `out`, which
    has exactly the delivered length, from one stored extent, and raises DataError when that does not work out.

    locate: where the container's own metadata say that the fields of a file lie: int64 [samples, fields, 2] = offset,
    stored bytes. DataError, naming the file, when it is not such a container or does not have these fields as they are
    declared. OSError. None where a file is one sample and has no metadata.
    """

    decode: Callable[[memoryview, memoryview], None] | None
    locate: Callable[[Path, Sequence[Field]], Extents] | None = None
