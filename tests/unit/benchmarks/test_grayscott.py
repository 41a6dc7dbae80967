"""The Gray-Scott solver beside what was published of it, and beside a plain statement of its equations."""

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.benchmarks.grayscott import kernels, published
from dlio_bench.benchmarks.grayscott.published import PUBLISHED
from dlio_bench.benchmarks.grayscott.solver import Solver, slab

pytestmark = pytest.mark.slow

SMALL = replace(PUBLISHED, size=16, noise=0.0)


def state(solver: Solver) -> np.ndarray:
    size = solver.settings.size
    out = np.empty((2, size, size, size))
    solver.copy_to(out)
    return out


def test_the_published_run_has_the_published_range() -> None:
    low, high = [], []
    solver = Solver(PUBLISHED, slab(PUBLISHED.size, 1, 0), seed=1, kernel=kernels.NUMBA)  # the quickest
    for step in range(1, PUBLISHED.steps + 1):
        solver.step()
        if step % PUBLISHED.plotgap == 0:
            fields = state(solver)
            low.append(fields.min(axis=(1, 2, 3)))
            high.append(fields.max(axis=(1, 2, 3)))
    assert len(low) == PUBLISHED.outputs == 100
    ranges = zip(np.min(low, axis=0), np.max(high, axis=0), strict=True)
    for (least, most), expected in zip(ranges, (published.RANGE_U, published.RANGE_V), strict=True):
        assert (least, most) == pytest.approx(expected, rel=0.01, abs=1e-6)


def test_a_step_is_that_of_the_equations() -> None:
    solver = Solver(replace(SMALL, noise=0.5), slab(16, 1, 0), seed=3)
    before = state(solver)
    solver.step()
    after = state(solver)
    u, v = before

    def laplacian(field: np.ndarray) -> np.ndarray:
        return (sum(np.roll(field, shift, axis) for axis in range(3) for shift in (1, -1)) - 6 * field) / 6

    du = 0.2 * laplacian(u) - u * v * v + 0.01 * (1 - u)
    dv = 0.1 * laplacian(v) + u * v * v - 0.06 * v
    assert after[1] == pytest.approx(v + 2 * dv, abs=1e-14)
    drawn = ((after[0] - u) / 2 - du) / 0.5
    assert -1 <= drawn.min() < -0.99 < 0.99 < drawn.max() < 1
    assert abs(drawn.mean()) < 0.05


def test_the_initial_cube_is_in_the_middle_and_the_space_is_periodic() -> None:
    solver = Solver(SMALL, slab(16, 1, 0), seed=0)
    u, v = state(solver)
    assert (u == 0.25).sum() == (v == 0.33).sum() == 12**3
    assert u[2, 2, 2] == u[13, 13, 13] == 0.25
    assert u[1, 2, 2] == u[2, 14, 2] == 1.0
    for _ in range(30):
        solver.step()
    u, _ = state(solver)
    assert u == pytest.approx(u[::-1, ::-1, ::-1], abs=1e-12)  # the middle of [2, 14) is that of the space
    assert u[0, 8, 8] < 1.0


def test_the_seed_draws_the_noise_and_a_reset_draws_it_again() -> None:
    noisy = replace(SMALL, noise=1e-3)
    runs = []
    solver = Solver(noisy, slab(16, 1, 0), seed=5)
    for other in (solver, solver, Solver(noisy, slab(16, 1, 0), seed=6)):
        other.reset()
        for _ in range(3):
            other.step()
        runs.append(state(other).tobytes())
    assert runs[0] == runs[1] != runs[2]


def test_numba_computes_the_bits_of_numpy() -> None:
    by_kernel = [Solver(replace(SMALL, noise=1e-3), slab(16, 2, 1), 5, kernel=name) for name in kernels.KERNELS]
    for solver in by_kernel:
        for _ in range(20):
            solver.step()
    first, second = (solver.u[1:-1, 1:-1, 1:-1].tobytes() for solver in by_kernel)
    assert first == second


def test_slabs_cover_the_planes_once() -> None:
    for ranks in (1, 3, 5, 16):
        parts = [slab(16, ranks, rank) for rank in range(ranks)]
        assert [plane for part in parts for plane in range(part.first, part.first + part.planes)] == list(range(16))
