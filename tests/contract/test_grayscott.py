"""The Gray-Scott solver on every number of ranks: the same fields to the bit."""

import hashlib

import numpy as np
from msgspec.structs import replace

from dlio_bench.benchmarks.grayscott.published import PUBLISHED
from dlio_bench.benchmarks.grayscott.solver import Solver, slab
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.coupling.sides import halo_exchange

SIZE, STEPS, SEED = 18, 40, 11
SETTINGS = replace(PUBLISHED, size=SIZE, noise=1e-3)


def fields(comm: Comm) -> bytes:
    """u and v after STEPS steps, [2, L, L, L], from all ranks."""
    solver = Solver(SETTINGS, slab(SIZE, comm.size, comm.rank), SEED, halo_exchange(comm, 60.0))
    for _ in range(STEPS):
        solver.step()
    mine = np.empty((2, solver.part.planes, SIZE, SIZE))
    solver.copy_to(mine)
    return np.concatenate(comm.allgather(mine), axis=1).tobytes()


def test_every_number_of_ranks_computes_the_same_fields(comm: Comm) -> None:
    alone = Solver(SETTINGS, slab(SIZE, 1, 0), SEED)
    for _ in range(STEPS):
        alone.step()
    whole = np.empty((2, SIZE, SIZE, SIZE))
    alone.copy_to(whole)
    assert hashlib.sha256(fields(comm)).digest() == hashlib.sha256(whole.tobytes()).digest()
