"""What every way of coupling offers both sides, what they check of each output, and what each side does uncoupled."""

from collections.abc import Sequence
from typing import Any, Protocol

import crc32c
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.benchmarks.grayscott.solver import Slab
from dlio_bench.errors import DataError

Array = npt.NDArray[np.float64]
KEPT = 4  # outputs that the solver holds in memory; each is copied over the oldest
ABOUT = 4  # int64 numbers that travel with a slab: number of the output, first plane, planes, CRC


class SideClock(Struct):
    """Seconds of one side in one case. waited: for the other side; moved: giving and getting outputs."""

    waited: float = 0.0
    moved: float = 0.0


class Outlet(Protocol):
    """The solver's end, of one rank. `put` adds to its clock."""

    clock: SideClock

    def put(self, number: int, fields: Array) -> None:
        """Give out this rank's slab [2, planes, L, L] of the output of that number, from 1 on."""
        ...

    def close(self) -> None:
        """All is given out; returns when this process may end."""
        ...


class Inlet(Protocol):
    """A twin's end. `take` adds to its clock."""

    clock: SideClock

    def take(self, number: int, out: Array) -> None:
        """Fill out [2, L, L, L] with the output of that number. StreamTimeout, DataError where another came."""
        ...

    def close(self) -> None:
        """All has been taken. DataError where there is more."""
        ...


def slab_header(number: int, part: Slab, fields: Array) -> npt.NDArray[np.int64]:
    """What travels with a slab."""
    return np.array([number, part.first, part.planes, checksum(fields)], np.int64)


def checksum(fields: Array) -> int:
    """CRC-32C of contiguous fields."""
    value: int = crc32c.crc32c(memoryview(fields).cast("B"))
    return value


def require(told: npt.NDArray[Any], number: int, part: Slab, fields: Array, way: str) -> None:
    """DataError unless a slab is that of the output that comes next, and whole."""
    came, first, planes, crc = map(int, told)
    if came != number:
        raise DataError(f"Coupling through {way}: output {number} was to come, and {came} came. Couple again.")
    if (first, planes) != (part.first, part.planes):
        raise DataError(
            f"Coupling through {way}: output {number} brought planes {first} to {first + planes - 1} instead of "
            f"{part.first} to {part.first + part.planes - 1}. Couple again."
        )
    if crc != checksum(fields):
        raise DataError(
            f"Coupling through {way}: the checksum of output {number}, planes from {first} on, is not that of what "
            "the solver gave out. The bytes changed on their way: look at the file system and its logs."
        )


class MemoryOutlet:
    """The solver alone: it keeps its outputs in memory."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """shape: of this rank's slab."""
        self.clock = SideClock()
        self._kept = np.zeros((KEPT, *shape))

    def put(self, number: int, fields: Array) -> None:
        """See Outlet."""
        self._kept[number % KEPT] = fields

    def close(self) -> None:
        """See Outlet."""


class MemoryInlet:
    """A twin alone: it has all states in memory."""

    def __init__(self, states: Sequence[Array]) -> None:
        self.clock = SideClock()
        self._states = states

    def take(self, number: int, out: Array) -> None:
        """See Inlet."""
        out[:] = self._states[number - 1]

    def close(self) -> None:
        """See Inlet."""
