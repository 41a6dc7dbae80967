"""Where a reader's bytes come from, on the virtual clock: a parallel file system, a node's own tier, another node.

The parallel file system is a queue: a read waits for its node's link and then for the part that all nodes share. Its
latency occupies neither and is added. So a thread that reads alone is as fast as `System.pfs_stream` says, all threads
of a node as fast as `pfs_link`, and all nodes as fast as t(gamma) with gamma the nodes of the job. A small read takes
longer when all nodes read (`System.pfs_stream_all`): the difference is added to the latency of each read.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dlio_bench.harness.cluster.system import MB, Rates, Stream, System
from dlio_bench.harness.simulator.kernel import Clock, Link, Process

REQUEST = 1 << 20  # bytes: as clients send, so that the reads of threads take turns


class Device(Protocol):
    """A source of bytes. The generator of a read lasts as long as the read."""

    open_seconds: float

    def read(self, node: int, size: int) -> Process:
        """Read `size` bytes by one thread of `node`."""
        ...


class FileSystem:
    """The parallel file system of a job of `nodes` nodes. UsageError: see System."""

    def __init__(self, clock: Clock, system: System, nodes: int) -> None:
        self._clock = clock
        self.open_seconds = system.pfs_open
        self._shared = Link(system.pfs.rate_for(nodes) * MB)
        self._links = [Link(system.pfs_link * MB) for _ in range(nodes)]
        quickest = min(system.pfs_link, system.pfs.rate_for(nodes)) * MB
        self._stream = system.pfs_stream or Stream(((1 << 20, quickest / MB),))
        self._quickest = quickest
        self._crowd = _crowding_seconds(system, nodes, quickest)
        self.bytes = 0

    def read(self, node: int, size: int) -> Process:
        """See Device."""
        self.bytes += size
        latency = max(self._stream.seconds(size) - size / self._quickest, 0.0) + self._crowd
        for at in range(0, size, REQUEST):
            part = min(REQUEST, size - at)
            start, end = self._links[node].reserve(self._clock.now, part)
            if start > self._clock.now:
                yield start
            _, through = self._shared.reserve(self._clock.now, part)
            yield max(end, through) + latency * part / size


def _crowding_seconds(system: System, nodes: int, quickest: float) -> float:
    """Extra seconds of a read when all nodes read, beyond what bandwidth explains: the mean over sizes."""
    alone, together = system.pfs_stream, system.pfs_stream_all
    if nodes == 1 or alone is None or together is None:
        return 0.0
    capacity = min(system.pfs.rate_for(nodes) * MB, nodes * quickest)
    extra = [
        max(together.seconds(size) - max(alone.seconds(size), nodes * size / capacity), 0.0)
        for size, _ in together.points
    ]
    return sum(extra) / len(extra)


class Links:
    """Devices that each serve all their readers together at `rate` bytes a second, one after the other.

    alone(size): seconds of a read by a thread that reads alone; what it takes beyond `rate` is added. shared: virtual
    nodes share one device.
    """

    def __init__(
        self, clock: Clock, rate: float, alone: Callable[[int], float], nodes: int, *, shared: bool = False
    ) -> None:
        self._clock, self._alone = clock, alone
        self._links = [Link(rate)] * nodes if shared else [Link(rate) for _ in range(nodes)]
        self.open_seconds, self.bytes = 0.0, 0

    def read(self, node: int, size: int) -> Process:
        """See Device. Writing takes as long, at the rates of writing."""
        self.bytes += size
        link = self._links[node]
        _, end = link.reserve(self._clock.now, size)
        yield end + max(self._alone(size) - size / link.rate, 0.0)


class TierDevice(Links):
    """A node's own tier: one thread reads at the rate for one thread, all threads together at that for their number."""

    def __init__(self, clock: Clock, rates: Rates, threads: int, nodes: int, *, shared: bool) -> None:
        alone = rates.rate_for(1) * MB
        super().__init__(
            clock, max(rates.rate_for(threads) * MB, alone), lambda size: size / alone, nodes, shared=shared
        )


class Cache:
    """A cache on the way to the file system, with room for so many samples. It drops the least recently read first."""

    def __init__(self, room: int, samples: Iterable[int] = ()) -> None:
        self.room, self._samples = room, OrderedDict.fromkeys(samples)

    def has(self, sample: int) -> bool:
        """Whether it has a sample. It has the sample afterwards."""
        hit = sample in self._samples
        self._samples[sample] = None
        self._samples.move_to_end(sample)
        if len(self._samples) > self.room:
            self._samples.popitem(last=False)
        return hit

    def clear(self) -> None:
        """Drop all samples."""
        self._samples.clear()


class NodeCores:
    """The cores of each node. shared: virtual nodes share those of one machine."""

    def __init__(self, clock: Clock, cores: int, nodes: int, *, shared: bool) -> None:
        self._clock = clock
        self._links = [Link(cores)] * nodes if shared else [Link(cores) for _ in range(nodes)]

    def compute(self, node: int, seconds: float) -> Process:
        """Compute for so many seconds of one core."""
        _, end = self._links[node].reserve(self._clock.now, seconds)
        yield max(end, self._clock.now + seconds)


def exchange(clock: Clock, system: System, sizes: Sequence[int]) -> Process:
    """Ranks exchange bytes at once (`sizes`: of each rank): the rank with most to send and receive takes longest."""
    yield clock.now + max(sizes, default=0) / (system.network * MB if system.network else float("inf"))
