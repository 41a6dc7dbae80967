"""How some planes of the fields are advanced by a step: by NumPy, or by numba where it is installed. Same bits."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.benchmarks.grayscott.published import Settings
from dlio_bench.errors import EnvironmentFailure

NUMPY, NUMBA = KERNELS = ("numpy", "numba")
Field = npt.NDArray[np.float64]
Kernel = Callable[[Field, Field, Field, Field, Field, int, int, Settings], None]
"""(u, v, next u, next v, noise, first, last, settings): advance the planes first ... last - 1 of fields
[planes + 2, L + 2, L + 2], whose outermost layers are filled. Those of the next fields are left undefined."""


def kernel(name: str) -> Kernel:
    """One of KERNELS. EnvironmentFailure where numba is not installed."""
    return _numpy() if name == NUMPY else _numba()


def _numpy() -> Kernel:
    """Whole blocks of contiguous memory: neighbours are at fixed distances, and the outer layers are computed too."""
    held: dict[int, list[Field]] = {}

    def advance(
        u: Field, v: Field, next_u: Field, next_v: Field, noise: Field, first: int, last: int, settings: Settings
    ) -> None:
        row = u.shape[2]
        plane = row * row
        low, high = first * plane, last * plane
        temporary = held.setdefault(high - low, [np.empty(high - low) for _ in range(3)])
        change, other, reaction = temporary
        flat_u, flat_v = u.reshape(-1), v.reshape(-1)
        cell_u, cell_v = flat_u[low:high], flat_v[low:high]

        def laplacian(field: Field) -> None:
            np.add(field[low - 1 : high - 1], field[low + 1 : high + 1], out=change)
            for distance in (row, plane):
                np.add(change, field[low - distance : high - distance], out=change)
                np.add(change, field[low + distance : high + distance], out=change)
            np.multiply(field[low:high], 6.0, out=other)
            np.subtract(change, other, out=change)
            np.divide(change, 6.0, out=change)

        np.multiply(cell_u, cell_v, out=reaction)
        np.multiply(reaction, cell_v, out=reaction)
        laplacian(flat_u)
        np.multiply(change, settings.diffusion_u, out=change)
        np.subtract(change, reaction, out=change)
        np.subtract(1.0, cell_u, out=other)
        np.multiply(other, settings.feed, out=other)
        np.add(change, other, out=change)
        np.add(change, noise.reshape(-1)[low:high], out=change)
        np.multiply(change, settings.dt, out=change)
        np.add(cell_u, change, out=next_u.reshape(-1)[low:high])
        laplacian(flat_v)
        np.multiply(change, settings.diffusion_v, out=change)
        np.add(change, reaction, out=change)
        np.multiply(cell_v, settings.feed + settings.kill, out=other)
        np.subtract(change, other, out=change)
        np.multiply(change, settings.dt, out=change)
        np.add(cell_v, change, out=next_v.reshape(-1)[low:high])

    return advance


def _numba() -> Kernel:
    compiled = _compile_kernel()

    def advance(
        u: Field, v: Field, next_u: Field, next_v: Field, noise: Field, first: int, last: int, settings: Settings
    ) -> None:
        compiled(
            u, v, next_u, next_v, noise, first, last,
            settings.diffusion_u, settings.diffusion_v, settings.feed, settings.kill, settings.dt,
        )  # fmt: skip

    return advance


@cache
def _compile_kernel() -> Any:
    """The kernel in machine code. Compiled here, before any clock starts; without fastmath, so that NumPy's bits come
    out.
    """
    if find_spec("numba") is None:
        raise EnvironmentFailure(
            "--kernel numba: numba is not installed. Install it with `pip install 'dlio-bench[numba]'`, or use "
            "--kernel numpy."
        )
    import numba

    field = "float64[:, :, ::1]"
    signature = f"void({', '.join([field] * 5)}, int64, int64, float64, float64, float64, float64, float64)"

    def advance(u: Any, v: Any, next_u: Any, next_v: Any, noise: Any, first: int, last: int,
                diffusion_u: float, diffusion_v: float, feed: float, kill: float, dt: float) -> None:  # fmt: skip
        rows, columns = u.shape[1], u.shape[2]
        loss = feed + kill
        for z in range(first, last):
            for y in range(1, rows - 1):
                for x in range(1, columns - 1):
                    cell_u, cell_v = u[z, y, x], v[z, y, x]
                    lap_u = (
                        u[z, y, x - 1] + u[z, y, x + 1] + u[z, y - 1, x] + u[z, y + 1, x] + u[z - 1, y, x]
                        + u[z + 1, y, x] - cell_u * 6.0
                    ) / 6.0  # fmt: skip
                    lap_v = (
                        v[z, y, x - 1] + v[z, y, x + 1] + v[z, y - 1, x] + v[z, y + 1, x] + v[z - 1, y, x]
                        + v[z + 1, y, x] - cell_v * 6.0
                    ) / 6.0  # fmt: skip
                    reaction = cell_u * cell_v * cell_v
                    change_u = lap_u * diffusion_u - reaction + (1.0 - cell_u) * feed + noise[z, y, x]
                    change_v = lap_v * diffusion_v + reaction - cell_v * loss
                    next_u[z, y, x] = cell_u + change_u * dt
                    next_v[z, y, x] = cell_v + change_v * dt

    return numba.njit(signature, nogil=True)(advance)
