"""The Gray-Scott equations in three dimensions, as the published example solves them (`published.EXAMPLE`).

    du = Du lap(u) - u v^2 + F (1 - u) + noise r      u += du dt
    dv = Dv lap(v) + u v^2 - (F + k) v                v += dv dt

simulation/gray-scott.cpp:109-161: forward Euler, periodic along all axes; lap is the sum of the six neighbours less six
times the cell, *divided by 6*; r is uniform in [-1, 1), drawn for each cell and step, and inside the brackets that dt
multiplies. There r comes from std::random_device; here from Philox counters, by seed, step and cell, so that every
number of ranks computes the same fields to the bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.benchmarks.grayscott import kernels
from dlio_bench.benchmarks.grayscott.published import CUBE_HALF, CUBE_U, CUBE_V, Settings

Field = npt.NDArray[np.float64]
Halo = Callable[[Field], None]
"""Fills the first and the last plane of a field [planes + 2, L + 2, L + 2] with those of the neighbours along z."""

WORDS_A_COUNT = 4  # 64-bit words that Philox gives for each value of its counter
BLOCK = 1 << 14  # cells that are computed at a time: all arrays of a block stay in the processor's cache


class Slab(Struct, frozen=True):
    """The planes along z of one rank: `planes` of them from `first` on."""

    first: int
    planes: int


def slab(size: int, ranks: int, rank: int) -> Slab:
    """The share of a rank; the first ranks have one plane more where `ranks` does not divide `size`."""
    least, more = divmod(size, ranks)
    return Slab(rank * least + min(rank, more), least + (rank < more))


def close_single_rank(field: Field) -> None:
    """The Halo of a single rank: its first plane follows its last."""
    field[0], field[-1] = field[-2], field[1]


class Solver:
    """One rank's slab. u, v: float64 [planes + 2, L + 2, L + 2], of which the outermost layer belongs to neighbours."""

    def __init__(
        self, settings: Settings, part: Slab, seed: int, halo: Halo = close_single_rank, kernel: str = kernels.NUMPY
    ) -> None:
        """kernel: one of `kernels.KERNELS`. EnvironmentFailure where its library is missing."""
        self.settings, self.part = settings, part
        self._seed, self._halo = seed, halo
        shape = (part.planes + 2, settings.size + 2, settings.size + 2)
        self.u, self.v, self._next_u, self._next_v = (np.empty(shape) for _ in range(4))
        self._noise = np.zeros(shape)
        self._advance = kernels.kernel(kernel)
        self.steps = 0
        self.reset()

    def reset(self) -> None:
        """Back to the initial state: v = 0 and u = 1, but for the cube in the middle."""
        size, part = self.settings.size, self.part
        self.steps = 0
        self.u.fill(1.0)
        self.v.fill(0.0)
        low, high = max(size // 2 - CUBE_HALF, 0), min(size // 2 + CUBE_HALF, size)
        first, last = max(low - part.first, 0), min(high - part.first, part.planes)
        if first < last:
            cube = np.s_[first + 1 : last + 1, low + 1 : high + 1, low + 1 : high + 1]
            self.u[cube], self.v[cube] = CUBE_U, CUBE_V
        self._neighbours()

    def step(self) -> None:
        """One time step."""
        size, settings = self.settings.size, self.settings
        plane = (size + 2) ** 2
        count = max(1, BLOCK // plane)
        draw = self._draws()
        for first in range(1, self.part.planes + 1, count):
            last = min(first + count, self.part.planes + 1)
            if settings.noise:
                self._noise[first:last, 1:-1, 1:-1] = draw(last - first)
            self._advance(self.u, self.v, self._next_u, self._next_v, self._noise, first, last, settings)
        self.u, self._next_u = self._next_u, self.u
        self.v, self._next_v = self._next_v, self.v
        self.steps += 1
        self._neighbours()

    def copy_to(self, out: Field) -> None:
        """Fill out, float64 [2, planes, L, L], with u and v of this rank's cells."""
        out[0], out[1] = self.u[1:-1, 1:-1, 1:-1], self.v[1:-1, 1:-1, 1:-1]

    def _neighbours(self) -> None:
        for field in (self.u, self.v):
            inner = field[1:-1]
            inner[:, 0], inner[:, -1] = inner[:, -2], inner[:, 1]
            inner[:, :, 0], inner[:, :, -1] = inner[:, :, -2], inner[:, :, 1]
            self._halo(field)

    def _draws(self) -> Callable[[int], Field]:
        """noise * r of this step's next planes, [planes, L, L]: one word for each cell, in the order z, y, x."""
        size, noise = self.settings.size, self.settings.noise
        count, skipped = divmod(self.part.first * size**2, WORDS_A_COUNT)
        key: Any = np.array([self._seed, self.steps], np.uint64)
        words = np.random.Philox(key=key, counter=count)
        words.random_raw(skipped, output=False)

        def draw(planes: int) -> Field:
            raw = words.random_raw(planes * size**2)
            raw >>= np.uint64(11)  # the 53 bits of a float64
            drawn = raw * (noise * 2.0**-52)
            drawn -= noise
            return np.asarray(drawn.reshape(planes, size, size))

        return draw
