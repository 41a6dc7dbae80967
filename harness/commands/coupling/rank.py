"""What one rank does: its side of every case in turn, alone and through every way of coupling, trial by trial."""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict

from dlio_bench.harness.cluster.comm import Comm, Outgoing, Solo
from dlio_bench.harness.cluster.entry import Caller, run_measuring_rank
from dlio_bench.harness.commands.coupling.job import APART, FILES, REFERENCES, SOLVER_ALONE, SST, TWINS_ALONE, Job
from dlio_bench.harness.commands.coupling.sides import Consumer, Producer, SideTimes
from dlio_bench.harness.commands.coupling.ways.files import FileInlet, FileOutlet
from dlio_bench.harness.commands.coupling.ways.streams import StreamInlet, StreamOutlet
from dlio_bench.harness.commands.coupling.ways.way import Inlet, MemoryInlet, MemoryOutlet, Outlet, checksum
from dlio_bench.harness.storage.pfs.board import Board, Traffic

Range = list[list[float]]  # least and greatest of u, and of v


class Rank:
    """One rank, ready for every case."""

    def __init__(self, job: Job, comm: Comm) -> None:
        """All ranks call it together. EnvironmentFailure where a library is missing."""
        self.job, self.comm = job, comm
        self.cores = bind(comm.host_rank, comm.host_size)
        is_producer = comm.rank < job.producers
        split = comm.split(0 if is_producer else comm.rank)
        assert split is not None
        self._side_comm: Comm = Solo() if split.size == 1 else split
        self.producer = Producer(job, self._side_comm) if is_producer else None
        self.consumer = None if is_producer else Consumer(job, comm.rank - job.producers, self.cores)
        self._folder = Path(job.folders[0 if self.consumer is None else 1 + self.consumer.number])
        self._expected, self.range = self._reference()

    def run(self, case: str, place: str, board: Board | None) -> tuple[list[dict[str, Any] | None], list[float] | None]:
        """One case: `SideTimes` of each rank, None of one that had no part in it; and what the file system carried.

        place: the name of a folder for this case alone. BenchError where a side got something else than was computed.
        """
        folder = (Path(self.job.meeting) if case == SST else self._folder) / place
        if self.comm.rank == 0:
            folder.mkdir()
        self.comm.barrier()
        before = _traffic(board)  # before streams open: their heads are traffic too
        end = self._open_end(case, folder)
        self.comm.barrier()
        timed: SideTimes | None = None
        if self.producer is not None and end is not None:
            timed = self.producer.run(end)
        if case == APART:
            self.comm.barrier()
        if self.consumer is not None and end is not None:
            timed = self.consumer.run(end, self._expected)
        self.comm.barrier()
        after = _traffic(board)
        if self.comm.rank == 0:
            shutil.rmtree(folder)
        carried = None if before is None or after is None else [b - a for a, b in zip(before, after, strict=True)]
        return [None if side is None else asdict(side) for side in self.comm.allgather(timed)], carried

    def _open_end(self, case: str, folder: Path) -> Any:
        """This rank's end, None where it has no part in the case."""
        if self.producer is not None:
            return None if case == TWINS_ALONE else self._open_outlet(self.producer, case, folder)
        assert self.consumer is not None
        return None if case == SOLVER_ALONE else self._open_inlet(self.consumer, case, folder)

    def _open_outlet(self, side: Producer, case: str, folder: Path) -> Outlet:
        job = self.job
        if case in REFERENCES:
            return MemoryOutlet(side.shape)
        if case in (FILES, APART):
            queue = job.queue if case == FILES else 0
            return FileOutlet(folder, self._side_comm, side.part, job.consumers, queue, job.patience)
        return StreamOutlet(folder, case, self.comm.rank, side.part, job.consumers, job.queue)

    def _open_inlet(self, side: Consumer, case: str, folder: Path) -> Inlet:
        job = self.job
        if case in REFERENCES:
            return MemoryInlet(side.states)
        if case in (FILES, APART):
            return FileInlet(folder, side.number, side.parts, job.settings.size, job.patience)
        return StreamInlet(folder, case, side.parts, job.patience)

    def _reference(self) -> tuple[list[int], Range]:
        """The run before the clock: the checksum of each output, and the range of both fields over all outputs.

        The solver's ranks give every twin all outputs by MPI.
        """
        job, size = self.job, self.job.settings.size
        twins = range(job.producers, job.ranks)
        if self.producer is not None:
            for fields in self.producer.outputs():
                outgoing: Iterator[Outgoing] = iter([(memoryview(fields).cast("B"), twins)])
                self.comm.exchange(outgoing, memoryview(b""), 0, lambda *_: None)
        expected, least, most = list[int](), np.full(2, math.inf), np.full(2, -math.inf)
        if self.consumer is not None:
            parts = self.consumer.parts
            inbox = memoryview(bytearray(16 * max(part.planes for part in parts) * size**2))
            for state in self.consumer.states:

                def store_planes(source: int, content: memoryview, state: Any = state) -> None:
                    part = parts[source]
                    fields = np.frombuffer(content, np.float64).reshape(2, part.planes, size, size)
                    state[:, part.first : part.first + part.planes] = fields

                self.comm.exchange(iter(()), inbox, job.producers, store_planes)
                expected.append(checksum(state))
                least = np.minimum(least, state.min(axis=(1, 2, 3)))
                most = np.maximum(most, state.max(axis=(1, 2, 3)))
        ranges: Range = [[low, high] for low, high in zip(least.tolist(), most.tolist(), strict=True)]
        return expected, self.comm.allgather(ranges)[-1]  # that of a twin


def bind(number: int, ranks: int) -> int:
    """Keep this rank, `number` of the `ranks` of its host, to cores of its own, if there are as many; how many it has.

    Otherwise one side would be slower when coupled because it no longer has the whole machine. With more ranks than
    cores all share them, and each counts on one.
    """
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        return 1
    mine = cores[number * len(cores) // ranks : (number + 1) * len(cores) // ranks]
    os.sched_setaffinity(0, mine)
    return len(mine)


def rotate_cases(cases: Sequence[str], trial: int) -> list[str]:
    """The cases in the order of a trial: each begins with another one, so that a drift of the machine meets all."""
    first = trial % len(cases)
    return [*cases[first:], *cases[:first]]


def _traffic(board: Board | None) -> Traffic | None:
    """What all nodes' mounts have carried so far."""
    if board is None:
        return None
    of_nodes = [board.traffic(node) for node in range(board.nodes)]
    return Traffic(*(sum(column) for column in zip(*of_nodes, strict=True)))


def measure(job: Job, comm: Comm, caller: Caller) -> dict[str, Any]:
    """Every trial of the job: {"trials", "cores", "range", "parameters"}, the same on every rank. BenchError, OSError.

    trials: {"trial", "warmup", "case", "sides", "traffic"} of each case; see `Rank.run`.
    """
    comm.barrier()  # the first one makes a file in shared memory: not while a rank that may be killed loads TensorFlow
    caller.show_activity("computing the reference, compiling the twins")
    rank = Rank(job, comm)
    trials = []
    with ExitStack() as stack:
        board = stack.enter_context(Board.open(Path(job.board))) if job.board else None
        for number in range(-job.warmups, job.trials):
            for case in rotate_cases(job.cases, number):
                trial = f"trial {number + 1}/{job.trials}" if number >= 0 else "warm-up"
                caller.show_activity(f"{trial}  {case}")
                sides, traffic = rank.run(case, f"{case}-{number + job.warmups}".replace(" ", "-"), board)
                about = {"trial": max(number, 0), "warmup": number < 0, "case": case}
                trials.append({**about, "sides": sides, "traffic": traffic})
    parameters = comm.allgather(0 if rank.consumer is None else rank.consumer.twin.parameters)
    return {
        "trials": trials,
        "cores": comm.allgather(rank.cores),
        "range": rank.range,
        "parameters": max(parameters),
    }


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(Job, measure))
