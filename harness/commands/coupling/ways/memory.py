"""No coupling: what each side does alone."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.harness.commands.coupling.ways.way import Array, Clock

KEPT = 4  # outputs that the solver holds; each is copied over the oldest


class MemoryOutlet:
    """The solver keeps its outputs in memory."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """shape: of this rank's slab."""
        self.clock = Clock()
        self._kept = np.zeros((KEPT, *shape))

    def put(self, number: int, fields: Array) -> None:
        """See Outlet."""
        self._kept[number % KEPT] = fields

    def close(self) -> None:
        """See Outlet."""


class MemoryInlet:
    """A twin has all states in memory."""

    def __init__(self, states: Sequence[Array]) -> None:
        self.clock = Clock()
        self._states = states

    def take(self, number: int, out: Array) -> None:
        """See Inlet."""
        out[:] = self._states[number - 1]

    def close(self) -> None:
        """See Inlet."""
