"""The communicator of a job of several ranks, over MPI. mpi4py is imported here alone."""

import functools
import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import comm
from dlio_bench.harness.cluster.comm import Comm, Cores, Floats, Outgoing, Solo, allowed_cpus, cores_here
from dlio_bench.harness.cluster.life import life, processes_started_together
from dlio_bench.harness.cluster.links import Inbox, send
from dlio_bench.harness.cluster.meeting import LOOK_OUT, MOST, Meeting, make_page, map_page
from dlio_bench.harness.cluster.mpi_library import leaving_nothing, why_unconnected

if TYPE_CHECKING:
    from mpi4py import MPI

World: TypeAlias = "MPI.Comm"

# A blocking MPI call spins, and a spinning rank takes the core that a reader thread of its neighbour needs. Waiting
# for other hosts is therefore polled, at intervals that grow with the wait to half a millisecond.
FIRST_POLL, LONGEST_POLL = 20e-6, 500e-6
POLLS_GROW = 1 / 16  # of the time waited: what comes is noticed that much late, at most

EXCHANGE_TAG, TREE_TAG, WORD_TAG, SWAP_TAG = 1, 2, 3, 4

# Under srun a rank that has left MPI_Init may send to one that has not, which then dies by signal 11 (Open MPI 5.0,
# open-mpi/ompi issue 12495 and pull request 13559). Ranks therefore keep quiet for this long before they talk. With 4
# nodes x 2 ranks on 2 busy cores 3 of 32 starts died without the pause, and 0 of 32 with it.
SETTLE_SECONDS = 0.5


class Mpi:
    """Ranks of MPI_COMM_WORLD."""

    def __init__(self, world: "MPI.Comm", host: "MPI.Comm", of_rank: Cores) -> None:
        self._world = world
        self._host = host
        self.cores = of_rank
        self.rank, self.size = world.Get_rank(), world.Get_size()
        self.host_rank, self.host_size = host.Get_rank(), host.Get_size()
        self._telling: list[tuple[MPI.Request, npt.NDArray[np.int64]]] = []  # numbers on their way

    @functools.cached_property
    def launched(self) -> Sequence[int]:
        """See Comm. All ranks ask for it together, the first time."""
        from mpi4py import MPI

        with life.waits():
            ranks: list[int] = self._world.allgather(MPI.COMM_WORLD.Get_rank())
        return ranks

    def barrier(self) -> None:
        """See Comm. Ranks of a host meet in its memory; the first of each then meet by MPI."""
        life.pending += 1  # as `life.waits` does, without what a context manager takes after a step: 30 us
        try:
            self._await_all()
        finally:
            life.pending -= 1
            life.moves += 1

    def _await_all(self) -> None:
        meeting, hosts = self._places
        if meeting is None:
            if hosts is None:  # there is no other rank
                return
            wait_for([hosts.Ibarrier()])
            return
        last = meeting.meet_next()
        if not last and (hosts is None or self.host_rank == 0):
            meeting.wait_for_all(self._world.Iprobe)
        if hosts is None:
            return
        if self.host_rank == 0:
            wait_for([hosts.Ibarrier()])
            meeting.wake_all()
        else:
            meeting.wait_for_hosts(self._world.Iprobe)

    @functools.cached_property
    def _places(self) -> "tuple[Meeting | None, MPI.Comm | None]":
        """Where this rank meets the others of its host, and the communicator of the hosts; None for a step not needed.

        All ranks call it together. If a host has no memory for it, or no host has several ranks, all meet by MPI.
        """
        from mpi4py import MPI

        first, several = self.host_rank == 0, self.host_size > 1
        page = self._shared_page() if 1 < self.host_size <= MOST else None
        meeting = None if page is None else Meeting(page, self.host_size, self.host_rank)
        everywhere = self._world.allreduce(meeting is not None or not several, MPI.LAND)
        if not everywhere:
            return None, self._world
        if self._world.allreduce(int(first)) == 1:
            return meeting, None
        return meeting, self._world.Split(0 if first else MPI.UNDEFINED)

    def _shared_page(self) -> mmap.mmap | None:
        """A page of memory that all ranks of this host have; None where this one has none."""
        with Inbox() as inbox:
            others, page = self._host.allgather(inbox.where)[1:], None
            with suppress(OSError):
                if self.host_rank == 0 and (page := make_page()) is not None:
                    for other in others:
                        send([page], other)
            self._host.Barrier()
            with suppress(OSError):
                if self.host_rank > 0:
                    [page] = inbox.take(1)
        return None if page is None else map_page(page)

    def gather(self, value: Any) -> list[Any] | None:
        """See Comm."""
        with life.waits():
            return self._world.gather(value)

    def allgather(self, value: Any) -> list[Any]:
        """See Comm."""
        with life.waits():
            return self._world.allgather(value)

    def total(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """See Comm."""
        from mpi4py import MPI

        result = np.empty_like(values)
        with life.waits():
            self._world.Allreduce(values, result, op=MPI.SUM)
        return result

    def greatest(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """See Comm."""
        from mpi4py import MPI

        result = np.empty_like(values)
        with life.waits():
            self._world.Allreduce(values, result, op=MPI.MAX)
        return result

    def blocks(self, values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        """See Comm. Ranks wait for rank 0 in a barrier: what they sent ahead would pile up in its memory."""
        from mpi4py import MPI

        content = values.reshape(-1).view(np.uint8)
        ranks = max(1, comm.BLOCK_BYTES // max(1, values.nbytes))
        block = np.empty((min(ranks, self.size), *values.shape), values.dtype) if self.rank == 0 else None
        for first in range(0, self.size, ranks):
            last = min(first + ranks, self.size)
            part = content if first <= self.rank < last else content[:0]
            self.barrier()
            with life.waits():
                if block is None:
                    self._world.Gatherv([part, MPI.BYTE], None)
                    continue
                counts = [values.nbytes if first <= rank < last else 0 for rank in range(self.size)]
                self._world.Gatherv([part, MPI.BYTE], [block, (counts, None), MPI.BYTE])
            yield block[: last - first]

    def exchange(
        self, outgoing: Iterator[Outgoing], inbox: memoryview, expected: int, arrived: Callable[[int, memoryview], None]
    ) -> None:
        """See Comm. A rank receives whatever comes next while it sends, so that no circle of ranks can wait."""
        from mpi4py import MPI

        status = MPI.Status()
        sending: list[MPI.Request] | None = []  # None: everything is sent
        receiving: MPI.Request | None = None
        pause, since = FIRST_POLL, time.monotonic()
        while sending is not None or expected:
            moved = False
            if expected and receiving is None:
                receiving = self._world.Irecv(inbox, MPI.ANY_SOURCE, EXCHANGE_TAG)
            if sending is not None and MPI.Request.Testall(sending):
                moved, following = True, next(outgoing, None)
                sending = None
                if following is not None:
                    content, receivers = following
                    sending = [self._world.Isend(content, rank, EXCHANGE_TAG) for rank in receivers]
            if receiving is not None and receiving.Test(status):
                moved, receiving, expected = True, None, expected - 1
                arrived(status.Get_source(), inbox[: status.Get_count(MPI.BYTE)])
            pause = FIRST_POLL if moved else min(2 * pause, LONGEST_POLL)
            if moved:
                since = time.monotonic()
            else:
                with life.waits():
                    time.sleep(pause)
                self._look_out(since)
        # otherwise a rank that is ahead could send messages of the next exchange into this one
        self.barrier()

    def _look_out(self, since: float) -> None:
        """Raise what ends a wait that has lasted since then. Nothing here: the launching command watches its ranks."""

    def swap(
        self, outgoing: npt.NDArray[Any], receiver: int, incoming: npt.NDArray[Any], source: int, seconds: float
    ) -> None:
        """See Comm."""
        sent, received = outgoing.reshape(-1).view(np.uint8), incoming.reshape(-1).view(np.uint8)
        with life.waits(seconds):
            _finish_by(
                time.monotonic() + seconds,
                lambda: [self._world.Irecv(received, source, SWAP_TAG), self._world.Isend(sent, receiver, SWAP_TAG)],
            )

    def split(self, color: int | None) -> Comm | None:
        """See Comm."""
        from mpi4py import MPI

        with life.waits():
            part = self._world.Split(MPI.UNDEFINED if color is None else color)
            return Mpi(part, part.Split_type(MPI.COMM_TYPE_SHARED), self.cores) if part else None

    def several_threads(self) -> bool:
        """See Comm."""
        from mpi4py import MPI

        return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)

    def all_sum(self, values: Floats, sums: Floats, seconds: float) -> None:
        """See Comm. Not in place: Open MPI's non-blocking all-reduce then takes up to three times as long."""
        kind, op = _addition(values.dtype)
        _finish_by(time.monotonic() + seconds, lambda: [self._world.Iallreduce([values, kind], [sums, kind], op)])

    def sum_to_first(self, values: Floats, sums: Floats, seconds: float, first: int = 0) -> None:
        """See Comm. Up a tree of whole messages: MPI's own sends segments, each of which would wait for a poll."""
        parent, children = _tree(self.rank, self.size, first)
        deadline, partial = time.monotonic() + seconds, values
        if children:
            partial, theirs = values.copy(), np.empty_like(values)
            for child in children:
                self._receive(deadline, theirs, child)
                with np.errstate(over="ignore", invalid="ignore"):
                    np.add(partial, theirs, out=partial)
        if parent is None:
            sums[:] = partial
        else:
            self._send(deadline, partial, [parent])

    def from_first(self, content: npt.NDArray[Any], seconds: float, first: int = 0) -> None:
        """See Comm. Down the tree of sum_to_first."""
        parent, children = _tree(self.rank, self.size, first)
        deadline = time.monotonic() + seconds
        if parent is not None:
            self._receive(deadline, content, parent)
        self._send(deadline, content, children[::-1])  # the largest subtrees first

    def _receive(self, deadline: float, content: npt.NDArray[Any], source: int) -> None:
        """Receive into a contiguous array. Bytes, since MPI knows no float16."""
        data = content.reshape(-1).view(np.uint8)
        _finish_by(deadline, lambda: [self._world.Irecv(data, source, TREE_TAG)])

    def _send(self, deadline: float, content: npt.NDArray[Any], receivers: Sequence[int]) -> None:
        data = content.reshape(-1).view(np.uint8)
        _finish_by(deadline, lambda: [self._world.Isend(data, rank, TREE_TAG) for rank in receivers])

    def send_number(self, rank: int, number: int) -> None:
        """See Comm."""
        content = np.array([number], np.int64)
        self._telling = [(sending, kept) for sending, kept in self._telling if not sending.Test()]
        self._telling.append((self._world.Isend(content, rank, WORD_TAG), content))

    def receive_number(self) -> tuple[int, int] | None:
        """See Comm."""
        from mpi4py import MPI

        status = MPI.Status()
        if not self._world.Iprobe(MPI.ANY_SOURCE, WORD_TAG, status):
            return None
        content = np.empty(1, np.int64)
        self._world.Recv(content, status.Get_source(), WORD_TAG)
        return status.Get_source(), int(content[0])

    def abort(self, status: int) -> None:
        """See Comm."""
        if on_abort is not None:
            on_abort(status)
        self._world.Abort(status)


on_abort: Callable[[int], None] | None = None  # what comes before MPI_Abort, where another process tells why

# A request that timed out cannot be cancelled: a late rank still writes to its buffers, so they must stay allocated.
_abandoned: "list[MPI.Request]" = []


def _tree(rank: int, size: int, first: int = 0) -> tuple[int | None, list[int]]:
    """A binomial tree over the ranks, from `first`: a rank's parent, and its children, smallest subtree first."""
    place = (rank - first) % size
    parent = None if place == 0 else (place & (place - 1)) + first
    reach = size if place == 0 else place & -place
    places = [place + (1 << bit) for bit in range((reach - 1).bit_length()) if place + (1 << bit) < size]
    return None if parent is None else parent % size, [(child + first) % size for child in places]


def wait_for(requests: "Sequence[MPI.Request]", deadline: float = math.inf) -> bool:
    """Poll until all are over; False when they are not at `deadline`, in seconds of time.monotonic."""
    from mpi4py import MPI

    begun = time.monotonic()
    while not MPI.Request.Testall(requests):
        now = time.monotonic()
        if now > deadline:
            return False
        if now - begun < LOOK_OUT:
            os.sched_yield()
        else:
            time.sleep(min((now - begun) * POLLS_GROW, LONGEST_POLL))
    return True


def _finish_by(deadline: float, begin: "Callable[[], list[MPI.Request]]") -> None:
    """Begin something and wait until it is over, polling.

    TimeoutError after `deadline`, in seconds of time.monotonic; EnvironmentFailure.
    """
    from mpi4py import MPI

    try:
        requests = begin()
        if not wait_for(requests, deadline):
            _abandoned.extend(requests)
            raise TimeoutError
    except MPI.Exception as error:
        raise EnvironmentFailure(
            f"MPI failed while ranks added up or passed on numbers: {error.Get_error_string()}. A rank has probably "
            "died; the launcher's output says which."
        ) from error


@functools.cache
def _addition(kind: np.dtype[Any]) -> "tuple[MPI.Datatype, MPI.Op]":
    """How MPI adds numbers of a kind. The standard knows no float16: its bits travel, and NumPy adds them."""
    from mpi4py import MPI

    if kind != np.float16:
        return MPI.Datatype.fromcode(kind.char), MPI.SUM

    def add(values: Any, total: Any, _: MPI.Datatype) -> None:
        sums = np.frombuffer(total, np.float16)
        with np.errstate(over="ignore", invalid="ignore"):  # too large is infinite, as on every device
            np.add(np.frombuffer(values, np.float16), sums, out=sums)

    return MPI.UINT16_T, MPI.Op.Create(add, commute=True)


def connect(ranks: int) -> Comm:
    """The communicator of a job of `ranks` ranks. EnvironmentFailure."""
    if ranks == 1:
        return Solo()
    world = _connect(ranks)
    host = host_of(world)
    return Mpi(world, host, cores_here(host.allgather(allowed_cpus())))


def _connect(ranks: int) -> World:
    world = whole_world(f"a job of {ranks} ranks")
    if world.Get_size() != ranks:
        raise EnvironmentFailure(why_unconnected(ranks, world.Get_size(), mpi_version()))
    return world


def whole_world(needed_by: str) -> World:
    """All processes that a launcher has started together. EnvironmentFailure where MPI cannot be loaded."""
    is_new = "mpi4py.MPI" not in sys.modules
    try:
        with leaving_nothing():
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EnvironmentFailure(
            f"MPI cannot be loaded for {needed_by}: {error}. Install one with "
            "pip install 'dlio-bench[mpi]', or load the site's MPI module; `dlio-bench doctor` shows what is found."
        ) from error
    if is_new and _must_settle(os.environ, MPI.Get_library_version()):
        time.sleep(SETTLE_SECONDS)
    return MPI.COMM_WORLD


def world_here() -> "World | None":
    """All processes that a launcher has started together with this one; None where it runs alone. EnvironmentFailure.

    MPI is loaded only where the launcher's variables tell of others.
    """
    ranks = processes_started_together(os.environ)
    if ranks > 1:
        return _connect(ranks)
    module = sys.modules.get("mpi4py.MPI")  # the launcher may be one that nobody here knows
    if module is None or not module.Is_initialized() or module.Is_finalized() or module.COMM_WORLD.Get_size() == 1:
        return None
    world: World = module.COMM_WORLD
    return world


def communicator(given: object) -> World:
    """What a program gives as a communicator of ranks. UsageError for anything else."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not isinstance(given, module.Intracomm) or given == module.COMM_NULL:
        raise UsageError(
            f"comm={given!r} is no communicator of mpi4py. Give one, such as MPI.COMM_WORLD, or leave it out."
        )
    world: World = given
    return world


def failure() -> type[Exception]:
    """What mpi4py raises where MPI fails."""
    from mpi4py import MPI

    return MPI.Exception


def places(world: World) -> list[tuple[int, int, int]]:
    """By rank: the first rank of its host, its number among the ranks there, and how many these are."""
    host = host_of(world)
    first = host.bcast(world.Get_rank())
    answer: list[tuple[int, int, int]] = world.allgather((first, host.Get_rank(), host.Get_size()))
    host.Free()
    return answer


def host_of(world: World) -> World:
    """The ranks of `world` that share this one's host. All ranks call it together."""
    from mpi4py import MPI

    return world.Split_type(MPI.COMM_TYPE_SHARED)


def _must_settle(env: Mapping[str, str], library: str) -> bool:
    """Whether srun, and not an mpirun inside the job, has started this rank of Open MPI."""
    return "SLURM_PROCID" in env and "OMPI_COMM_WORLD_RANK" not in env and library.startswith("Open MPI")


def mpi_version() -> str | None:
    """Name and version of the loaded MPI library; None where no MPI is in use."""
    module = sys.modules.get("mpi4py.MPI")
    return None if module is None else str(module.Get_library_version()).splitlines()[0].split(",")[0]
