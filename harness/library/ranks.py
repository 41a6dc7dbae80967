"""The ranks that share a loader's samples: those of a given communicator, of a launcher's world, or this process."""

import os
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from dlio_bench.errors import EnvironmentFailure, Stalled
from dlio_bench.harness.cluster import mpi
from dlio_bench.harness.cluster.comm import Comm, Solo, allowed_cpus, cores_here
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.life import life

if TYPE_CHECKING:
    from mpi4py import MPI


def ranks(given: object | None, patience: float) -> Comm:
    """The ranks of an mpi4py communicator; for None all that a launcher has started, else this process alone.

    All ranks call it together. UsageError for what is no communicator, EnvironmentFailure where MPI cannot be loaded.
    """
    world = mpi.world_here() if given is None else mpi.communicator(given)
    return Solo() if world is None or world.Get_size() == 1 else Borrowed(world, patience)


def ranks_per_node(comm: Comm) -> int:
    """Ranks of each host where they fill hosts alike, one host after the other; else 1: each rank is then a node."""
    seats = comm.allgather((comm.host_rank, comm.host_size))
    size = comm.host_size
    return size if all(seat == (rank % size, size) for rank, seat in enumerate(seats)) else 1


FAILED_TAG = 3  # of the message by which a rank says that it has failed
LOOK_SECONDS = 0.1  # between two looks for such messages, while a rank waits
_sent: list[Any] = []  # messages that may not have arrived yet: their memory stays


class Borrowed(mpi.Mpi):
    """The ranks of a duplicate of a communicator, so that no message of its owner is taken for one of ours.

    All ranks make it together. What waits for others ends after `patience` seconds with Stalled, and at once with
    EnvironmentFailure where a rank has said that it failed.
    """

    def __init__(self, lent: mpi.World, patience: float) -> None:
        world = lent.Dup()
        host = mpi.host_of(world)
        super().__init__(world, host, cores_here(host.allgather(allowed_cpus())))
        self._patience = patience

    def require_all(self) -> None:
        """EnvironmentFailure if a rank has failed."""
        if self._world.Iprobe(tag=FAILED_TAG):
            rank, host, why = self._world.recv(tag=FAILED_TAG)
            raise EnvironmentFailure(
                f"Rank {rank} on {host} has left its loop, and the other ranks cannot go on without it. It says: {why}"
            )

    def fail(self, why: str) -> None:
        """Tell the others that this rank leaves."""
        told, others = (self.rank, host_name(), why), set(range(self.size)) - {self.rank}
        with suppress(mpi.failure()):
            _sent.extend(self._world.isend(told, rank, FAILED_TAG) for rank in others)

    def close(self) -> None:
        """Give the duplicate back. All ranks do so together."""
        with suppress(mpi.failure()):
            self._host.Free()
            self._world.Free()

    def _await_all(self) -> None:
        self._wait([self._world.Ibarrier()])

    def gather(self, value: Any) -> list[Any] | None:
        """See Comm."""
        everybody = self.allgather(value)
        return everybody if self.rank == 0 else None

    def allgather(self, value: Any) -> list[Any]:
        """See Comm."""
        content = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes = np.zeros(self.size, dtype=np.int64)
        with life.waits():
            self._wait([self._world.Iallgather(np.array([len(content)], dtype=np.int64), sizes)])
            starts = np.cumsum(sizes) - sizes
            everything = np.empty(int(sizes.sum()), dtype=np.uint8)
            self._wait([self._world.Iallgatherv(content, [everything, (sizes, starts)])])
        return [pickle.loads(everything[start : start + size]) for start, size in zip(starts, sizes, strict=True)]

    def _wait(self, requests: "Sequence[MPI.Request]") -> None:
        since = time.monotonic()
        try:
            while not mpi.wait_for(requests, time.monotonic() + min(LOOK_SECONDS, self._patience)):
                self._look_out(since)
        except mpi.failure() as error:
            raise EnvironmentFailure(
                f"MPI failed while rank {self.rank} waited for the others: {error}. A rank has probably died; the "
                "launcher's output says which."
            ) from error
        except BaseException:
            _sent.extend(requests)
            raise

    def _look_out(self, since: float) -> None:
        self.require_all()
        if time.monotonic() - since > self._patience:
            raise Stalled(
                f"Rank {self.rank} on {host_name()} (process {os.getpid()}) has waited for {self._patience:g} seconds "
                "for the other ranks, of which one has died or stands still. All ranks must open, iterate and close "
                "their loaders together; patience= is how long a rank waits."
            )
