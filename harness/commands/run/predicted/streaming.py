"""Streams on the virtual clock: the queue of a producer, the link to a trainer, and the slots of a trainer.

streams/dealing.py says who publishes and who takes which batch, as when a reader runs. This file adds the time.
"""

from collections.abc import Iterable

from msgspec import Struct

from dlio_bench.harness.cluster.system import MB, STAGING, Stream, System
from dlio_bench.harness.commands.run.predicted.devices import Device
from dlio_bench.harness.commands.run.predicted.runtime import Pace, Rank, begin, finish
from dlio_bench.harness.simulator.kernel import Clock, Link, Meeting, Process, Signal

ANY_BYTES = 1 << 20  # of a step, where one rate stands for all


class Queue:
    """Steps of one stream: at most `limit` that not all `readers` are past yet."""

    def __init__(self, clock: Clock, limit: int, readers: int = 1) -> None:
        self._clock, self._limit = clock, limit
        self._steps, self._past = 0, [0] * readers
        self._room, self._more = Signal(), Signal()

    def put(self, copied: Process) -> Process:
        """Add a step when there is room for it, and it is copied."""
        while self._steps - min(self._past) >= self._limit:
            yield self._room
        yield from copied
        self._steps += 1
        self._clock.wake(self._more)

    def come(self, step: int) -> Process:
        """Wait until there is a step of this number."""
        while self._steps <= step:
            yield self._more

    def release(self, reader: int, step: int) -> None:
        """A reader needs this step and those before it no more."""
        self._past[reader] = step + 1
        self._clock.wake(self._room)


class Wires:
    """What each producer sends through: its trainers share its rate, and the latency of a step comes on top."""

    def __init__(self, clock: Clock, rates: Stream, producers: int) -> None:
        self._clock, self._rates = clock, rates
        self._links = [Link(rates.points[-1][1] * MB) for _ in range(producers)]
        self.open_seconds, self.bytes = 0.0, 0

    def read(self, node: int, size: int) -> Process:
        """Move a step of `size` bytes from a producer, whose number is `node`. See Device."""
        self.bytes += size
        link = self._links[node]
        _, end = link.reserve(self._clock.now, size)
        yield end + max(self._rates.seconds(size) - size / link.rate, 0.0)


class Slots:
    """A trainer's bounded buffer: who fills it waits for a free slot, the trainer for a full one."""

    def __init__(self, clock: Clock, slots: int) -> None:
        self._clock, self._free, self._filled = clock, slots, 0
        self._room, self._ready = Signal(), Signal()

    def take(self) -> Process:
        """Get a free slot."""
        while not self._free:
            yield self._room
        self._free -= 1

    def fill(self) -> None:
        """The next batch is in its slot."""
        self._filled += 1
        self._clock.wake(self._ready)

    def trainer(self, rank: Rank, meeting: Meeting, pace: Pace) -> Process:
        """The trainer: asking for a batch frees the slot of the last one."""
        for step in range(rank.steps):
            yield from begin(self._clock, rank, step, meeting, pace)
            if step:
                self._free += 1
                self._clock.wake(self._room)
            while self._filled <= step:
                yield self._ready
            yield from finish(self._clock, rank, step, meeting, pace)


class Coming(Struct, frozen=True):
    """A step that a trainer takes. reader, number: of the trainer among those of the stream, and of the step in it.

    size: bytes; None: the step is for another rank.
    """

    queue: Queue
    producer: int
    reader: int
    number: int
    size: int | None


def receiver(slots: Slots, wires: Device, steps: Iterable[Coming]) -> Process:
    """readers/streamed.py: a thread takes steps of streams, in the order of the plan, into free slots."""
    for step in steps:
        if step.size is not None:
            yield from slots.take()
        yield from step.queue.come(step.number)
        yield from wires.read(step.producer, step.size or 0)
        step.queue.release(step.reader, step.number)
        if step.size is not None:
            slots.fill()


def rates_of(system: System, *, virtual: bool, nodes: int) -> tuple[Stream, str | None]:
    """The rate of a stream by bytes of a step, and what a user should know where it was not measured."""
    if system.adios_stream is not None:
        return system.adios_stream, None
    between = nodes > 1 and not virtual
    if between and system.network:
        return Stream(((ANY_BYTES, system.network),)), "they are taken to be as fast as the network"
    rate = next(tier for tier in system.tiers if tier.name == STAGING).read.at(1)
    where = "between nodes too, as the description has no rate of the network either" if between else "on one machine"
    return Stream(((ANY_BYTES, rate),)), f"they are taken to be as fast as memory ({where})"
