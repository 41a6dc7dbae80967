"""What one rank of a calibration does: rank 0 measures its node's own tiers, then all nodes read together."""

import os
import secrets
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.comm import Comm, Solo, run_on_all_ranks
from dlio_bench.harness.cluster.entry import Caller, run_measuring_rank
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.cluster.links import Address
from dlio_bench.harness.cluster.peers import Peers, Serving
from dlio_bench.harness.commands.calibration import streaming
from dlio_bench.harness.commands.calibration.options import Options
from dlio_bench.harness.commands.calibration.probes import TestFiles, decode_rate, rate, tier_rates
from dlio_bench.harness.commands.storage_bench import reading
from dlio_bench.harness.training.compute import fine_timers

BARRIERS = 50
MESSAGE_BYTES, MESSAGES = 1 << 20, 128  # samples that a node gets from another to measure the network
SMALL = 2  # of the smallest sizes are read by all nodes at once: larger ones measure the bandwidth instead
TYPICAL_BYTES = 1 << 20  # of a read, where one size stands for all


class ProbeJob(SavedJob, frozen=True):
    """One rank a node. files: names in `folder`, each of `file_bytes`; sizes: bytes of a read, ascending.

    mounts: node -> where it sees `folder`; board: counters of the emulated file system, empty where none is.
    """

    options: Options
    sizes: tuple[int, ...]
    folder: str
    files: tuple[str, ...]
    file_bytes: int
    seed: int
    mounts: tuple[str, ...] = ()
    board: str = ""

    @property
    def ranks(self) -> int:
        """One of each node."""
        return self.options.nodes

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of nodes that read at once: 1, 2, 4, ... and all."""
        powers = (1 << power for power in range(self.ranks.bit_length()))
        return tuple(sorted({*(count for count in powers if count <= self.ranks), self.ranks}))


def measure(job: ProbeJob, comm: Comm, caller: Caller) -> dict[str, Any]:
    """All measurements, the same on every rank. Rates in bytes a second, times in seconds. BenchError, OSError.

    pfs: {nodes that read: rate of all}, stream: {bytes of a read: rate of one thread alone}, stream_all: the same of
    small reads while a thread on every node reads so (one node: nothing), streams: {bytes of a step: rate between two
    processes} (nothing without ADIOS2), open, barrier; network, preprocess: None where not measured; ram, disk: as of
    tier_rates (disk: None without a folder); hosts.
    """
    fine_timers()
    nodes, place, most = comm.size, _place(job, comm), max(job.options.threads)
    typical = min(job.sizes, key=lambda size: abs(size - TYPICAL_BYTES))
    caller.show_activity("memory and local storage")
    of_node = run_on_all_ranks(comm, lambda: _of_node(job, typical) if comm.rank == 0 else {})[0]
    caller.show_activity("opens")
    opening = 1 / run_on_all_ranks(comm, lambda: reading.opens(Solo(), place.paths) if comm.rank == 0 else 0.5)[0]
    stream, pfs = {}, {}
    for size in job.sizes:
        caller.show_activity(f"one thread, reads of {size} bytes")
        stream[size] = rate(comm, place, size, _readers(comm, 1, 1), job.seed, opening)
    crowd = {}
    for size in job.sizes[:SMALL] if nodes > 1 else ():
        caller.show_activity(f"one thread on each of {nodes} nodes, reads of {size} bytes")
        crowd[size] = rate(comm, place, size, _readers(comm, nodes, 1), job.seed, opening) / nodes
    for some in job.counts:
        caller.show_activity(f"{some} nodes x {most} threads")
        pfs[some] = rate(comm, place, typical, _readers(comm, some, most), job.seed)
    streams = {}
    if job.options.streams:
        caller.show_activity("streams")
        streams = streaming.measure(comm, Path(job.folder), job.sizes)
    caller.show_activity("network")
    return {
        "pfs": pfs,
        "stream": stream,
        "stream_all": crowd,
        "streams": streams,
        "open": opening,
        "barrier": _barrier(comm),
        "network": _network(comm),
        "hosts": sorted(set(comm.allgather(host_name()))),
        **of_node,
    }


def _of_node(job: ProbeJob, size: int) -> dict[str, Any]:
    """Rates of a node's own memory, disk and decoding."""
    threads, local, workload = job.options.threads, job.options.local, job.options.workload
    return {
        "ram": tier_rates(None, threads, size, job.seed, cold=False),
        "disk": None if local is None else tier_rates(local, threads, size, job.seed, cold=True),
        "preprocess": None if workload is None else decode_rate(workload),
    }


def _place(job: ProbeJob, comm: Comm) -> TestFiles:
    seen, below = (
        tuple(str(Path(place) / name) for name in job.files) for place in (job.mounts[comm.rank], job.folder)
    )
    return TestFiles(seen, job.file_bytes, comm.rank, below, Path(job.board) if job.board else None)


def _readers(comm: Comm, nodes: int, threads: int) -> tuple[int, ...]:
    return tuple(threads if node < nodes else 0 for node in range(comm.size))


def _barrier(comm: Comm) -> float:
    """Seconds that ranks need to meet when they come at the same time; the median of some."""
    times = []
    for _ in range(BARRIERS):
        comm.barrier()
        started = time.perf_counter()
        comm.barrier()
        times.append(time.perf_counter() - started)
    return float(max(comm.allgather(statistics.median(times))))


def _network(comm: Comm) -> float | None:
    """Bytes a second that one thread of the first node gets from the second, as samples are served; None alone."""
    if comm.size == 1:
        return None
    memory = os.memfd_create("dlio-bench-calibrate")
    token: bytes = comm.allgather(secrets.token_bytes(16) if comm.rank == 0 else b"")[0]
    places = interfaces.serving(comm)
    serving: Serving | None = None
    seconds = 0.0
    try:
        if comm.rank == 1:
            os.pwrite(memory, bytes(MESSAGE_BYTES), 0)
            serving = Serving(lambda _: (memory, 0, MESSAGE_BYTES), token=token, host=places[1].address)
        addresses = comm.allgather(None if serving is None else serving.address)
        if comm.rank == 0:
            seconds = _fetch_seconds(addresses, token)
        comm.barrier()  # the one that serves stays until all is fetched
    finally:
        if serving is not None:
            serving.close()
        os.close(memory)
    seconds = comm.allgather(seconds)[0]
    return MESSAGES * MESSAGE_BYTES / seconds if seconds else None


def _fetch_seconds(addresses: Sequence[Address | None], token: bytes) -> float:
    """Seconds to get the messages from rank 1, the median of some; 0 where it cannot be reached."""
    absent = Address("", 0, b"")  # of ranks that do not serve
    peers = Peers([address or absent for address in addresses], token)
    outs = [memoryview(np.full(MESSAGE_BYTES, 1, dtype=np.uint8))] * MESSAGES  # all into one place
    times = []
    try:
        for _ in range(4):
            started = time.perf_counter()
            if not all(peers.fetch(1, range(MESSAGES), outs)):
                return 0.0
            times.append(time.perf_counter() - started)
    finally:
        peers.close()
    return statistics.median(times[1:])  # the first one makes the connection


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(ProbeJob, measure))
