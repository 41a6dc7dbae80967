"""The two sides of the workflow, each with what it needs made before any clock starts."""

import time
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from dlio_bench.benchmarks.grayscott.solver import Field, Halo, Solver, close_single_rank, slab
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.commands.coupling.job import Job
from dlio_bench.harness.commands.coupling.ways.way import Array, Inlet, Outlet, checksum


class SideTimes(Struct, frozen=True):
    """Seconds of one rank in one case, and of them those in which it waited for the other side or moved outputs.

    elapsed: of the solver until its last output is given out, of a twin until it has trained on it.
    loss: of a twin's last step; None of the solver. outputs: given out or taken.
    """

    elapsed: float
    waited: float
    moved: float
    outputs: int
    loss: float | None = None


def halo_exchange(comm: Comm, seconds: float) -> Halo:
    """The planes that neighbouring slabs exchange, through the communicator of the solver's ranks.

    The Halo of this rank's slab, where rank r + 1 has the planes that follow those of rank r, periodically.

    TimeoutError after `seconds`: see Comm.swap.
    """
    if comm.size == 1:
        return close_single_rank
    above, below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def exchange(field: Field) -> None:
        comm.swap(field[-2], above, field[0], below, seconds)
        comm.swap(field[1], below, field[-1], above, seconds)

    return exchange


class Producer:
    """One rank of the solver."""

    def __init__(self, job: Job, comm: Comm) -> None:
        """comm: of the solver's ranks."""
        size = job.settings.size
        self.part = slab(size, comm.size, comm.rank)
        self._settings = job.settings
        patience = job.patience
        self._solver = Solver(job.settings, self.part, job.seed, halo_exchange(comm, patience), job.kernel)
        self.shape = (2, self.part.planes, size, size)
        self._fields = np.empty(self.shape)

    def run(self, outlet: Outlet) -> SideTimes:
        """All steps, from the initial state on."""
        self._solver.reset()
        began, outputs = time.monotonic(), 0
        for fields in self.outputs():
            outputs += 1
            outlet.put(outputs, fields)
        elapsed = time.monotonic() - began
        outlet.close()
        return SideTimes(elapsed, outlet.clock.waited, outlet.clock.moved, outputs)

    def outputs(self) -> Iterator[Array]:
        """This rank's slab of each output; one array, filled again."""
        for step in range(1, self._settings.steps + 1):
            self._solver.step()
            life.moves += 1
            if step % self._settings.plotgap == 0:
                self._solver.copy_to(self._fields)
                yield self._fields


class Consumer:
    """One twin, and the states that it is to get, which `states` holds."""

    def __init__(self, job: Job, number: int, cores: int) -> None:
        """number: of the twin, from 0 on. cores: that TensorFlow computes with. EnvironmentFailure."""
        from dlio_bench.benchmarks.grayscott.twin import Twin, compute_alone

        compute_alone(cores)
        size = job.settings.size
        self.number = number
        self.parts = [slab(size, job.producers, rank) for rank in range(job.producers)]
        self.states = [np.empty((2, size, size, size)) for _ in range(job.settings.outputs)]
        self._steps = job.train_steps
        self._held = [np.empty((2, size, size, size)) for _ in range(2)]
        self.twin = Twin(size, job.seed + number)

    def run(self, inlet: Inlet, expected: list[int]) -> SideTimes:
        """Take every output, and train on each with the one before. expected: checksum of each. DataError."""
        self.twin.reset()
        before, present = self._held
        loss, began = float("nan"), time.monotonic()
        for number, crc in enumerate(expected, start=1):
            inlet.take(number, present)
            require_state(number, present, crc)
            if number > 1:
                loss = self.twin.train(before, present, self._steps)
            life.moves += 1
            before, present = present, before
        inlet.close()
        clock = inlet.clock
        return SideTimes(time.monotonic() - began, clock.waited, clock.moved, len(expected), loss)


def require_state(number: int, state: Array, expected: int) -> None:
    """DataError unless a state is that of the run before the clock: the solver computes the same bits each time."""
    if checksum(state) != expected:
        raise DataError(
            f"Output {number} that a twin got is not what the solver computed before the clock started. Either the "
            "coupling mixed outputs up, or the solver does not compute the same twice: look at the machine's memory."
        )
