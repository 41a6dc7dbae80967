"""What a reader must know of a container: whether a stored extent already is the delivered bytes."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Container:
    """One way of storing samples in files.

    decode: None where a stored extent is the delivered bytes. Otherwise `decode(stored, out)` fills `out`, which
    has exactly the delivered length, from one stored extent, and raises DataError when that does not work out.
    """

    decode: Callable[[memoryview, memoryview], None] | None
