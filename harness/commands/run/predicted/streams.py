"""A reader of streams on the virtual clock: producers read the plan and publish it, trainers take what is theirs.

streams/dealing.py says who publishes and who takes which batch, as when a reader runs. This file adds the time: the
queue of a producer, the link to a trainer, and the slots of a trainer.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from dlio_bench.harness.cluster.environment import usable_cores
from dlio_bench.harness.cluster.system import MB, STAGING, Stream, System
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.devices import FileSystem, Links
from dlio_bench.harness.commands.run.predicted.runtime import chunks, open_files_per_rank
from dlio_bench.harness.commands.run.predicted.setting import Executed, Setting
from dlio_bench.harness.simulator.kernel import Clock, Process, Signal
from dlio_bench.harness.streams.dealing import Dealt, PlanBatch, batches_of_producer, putting, steps_of_rank
from dlio_bench.harness.streams.settings import ROUND_ROBIN

ANY_BYTES = 1 << 20  # of a step, where one rate stands for all
FREELY = runtime.StepPace(0.0, "none", 1)  # producers do not compute and do not wait for each other
Put: TypeAlias = Callable[[int], Process]  # hands a step of a producer's plan over


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

    def await_step(self, step: int) -> Process:
        """Wait until there is a step of this number."""
        while self._steps <= step:
            yield self._more

    def release(self, reader: int, step: int) -> None:
        """A reader needs this step and those before it no more."""
        self._past[reader] = step + 1
        self._clock.wake(self._room)


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

    def batch(self, step: int) -> Process:
        """The trainer gets the batch of the next step; asking for it frees the slot of the last one."""
        if step:
            self._free += 1
            self._clock.wake(self._room)
        while self._filled <= step:
            yield self._ready


def rates_of(system: System, *, virtual: bool, nodes: int) -> tuple[Stream, str | None]:
    """The rate of a stream by bytes of a step, and what a user should know where it was not measured."""
    if system.adios_stream is not None:
        return system.adios_stream, None
    between = nodes > 1 and not virtual
    if between and system.network:
        return Stream(((ANY_BYTES, system.network),)), "they are taken to be as fast as the network"
    rate = next(tier for tier in system.tiers if tier.name == STAGING).read.rate_for(1)
    where = "between nodes too, as the description has no rate of the network either" if between else "on one machine"
    return Stream(((ANY_BYTES, rate),)), f"they are taken to be as fast as memory ({where})"


def execute_streams(setting: Setting) -> Executed:
    """Run the reader to its end. Producers are ranks of their own, or threads of the trainers' processes (--inline)."""
    assert setting.job.streaming is not None
    return _inline(setting) if setting.job.streaming.inline else _execute_published(setting)


def _inline(setting: Setting) -> Executed:
    """readers/inline.py: a thread reads the plan of the trainer beside it, and copies batches into slots for it."""
    job, clock = setting.job, Clock()
    assert job.streaming is not None
    pfs, meetings = FileSystem(clock, setting.system, job.nodes), setting.meetings(clock)
    copying = setting.memory(clock, setting.tier(STAGING), write=True)
    produce = _producers(setting, clock, pfs, setting.cached_shares(setting.side_by_side()))
    ranks = [setting.rank(number, ()) for number in range(job.ranks)]

    def hand_over(rank: runtime.SimulatedRank, sizes: Sequence[int], slots: Slots) -> Put:
        def put_step(step: int) -> Process:
            yield from slots.take()
            yield from copying.read(rank.node, sizes[step])
            slots.fill()

        return put_step

    for rank, plan, meeting in zip(ranks, _plans(setting), meetings, strict=True):
        slots = Slots(clock, job.streaming.queue)
        sizes = [setting.bytes_of(part.ids) for part in plan]
        clock.start(runtime.train(clock, rank, meeting, setting.pace(), slots.batch))
        clock.start(produce(rank.node, plan, hand_over(rank, sizes, slots), None))
    clock.run()
    return Executed(ranks, 0.0, {"pfs": pfs.bytes, "local": 0})


def _execute_published(setting: Setting) -> Executed:
    """run/measured/producing.py and readers/streamed.py: as the two deal batches, so does this."""
    job, clock = setting.job, Clock()
    streaming = job.streaming
    assert streaming is not None
    mode, producers = streaming.how, streaming.producers
    models = [job.model_of(rank) for rank in range(job.ranks)]
    plans = [plan for plan, (model, _) in zip(_plans(setting), models, strict=True) if model == 0]
    dealt = [list(batches_of_producer(plans, mode.name, producer, producers)) for producer in range(producers)]
    nodes = [producer % job.nodes for producer in range(producers)]  # see Layout.producer
    pfs, meetings = FileSystem(clock, setting.system, len(set(nodes))), setting.meetings(clock)
    copying = setting.memory(clock, setting.tier(STAGING), write=True)
    rates, _ = rates_of(setting.system, virtual=job.virtual, nodes=job.nodes)
    # the trainers of a producer share its rate, and the latency of a step comes on top
    wires = Links(clock, rates.points[-1][1] * MB, rates.seconds, producers)
    held, streams = streaming.steps_held(mode, job.ranks), 1 if mode.shared else job.ranks
    queues = [[Queue(clock, held, job.ranks if mode.shared else 1) for _ in range(streams)] for _ in range(producers)]
    sizes = [{(each.position, each.rank): setting.bytes_of(each.part.ids) for each in batches} for batches in dealt]

    def putting_of(producer: int) -> Put:
        def put_step(step: int) -> Process:
            batch = dealt[producer][step]
            for stream in putting(mode, batch.rank, models):
                copied = copying.read(nodes[producer], sizes[producer][batch.position, batch.rank])
                yield from queues[producer][stream].put(copied)

        return put_step

    def receive(trainer: int, slots: Slots) -> Process:
        """readers/streamed.py: a thread takes the steps that ADIOS2 deals to a trainer, in order, into free slots."""
        rank, place = models[trainer][1], trainer if mode.shared else 0
        next_step = dict.fromkeys(range(producers), place if mode.name == ROUND_ROBIN else 0)
        for step in steps_of_rank(len(plans[0]), len(plans), mode.name, rank, producers):
            number, queue = next_step[step.producer], queues[step.producer][0 if mode.shared else trainer]
            next_step[step.producer] += job.ranks if mode.name == ROUND_ROBIN else 1
            # a step of another rank brings nothing
            size = 0 if step.position is None else sizes[step.producer][step.position, rank]
            if step.position is not None:
                yield from slots.take()
            yield from queue.await_step(number)
            yield from wires.read(step.producer, size)
            queue.release(place, number)
            if step.position is not None:
                slots.fill()

    produce = _producers(setting, clock, pfs, setting.cached_shares(_in_turn(dealt, nodes)))
    ranks = [setting.rank(number, ()) for number in range(job.ranks)]
    for trainer, (rank, meeting) in enumerate(zip(ranks, meetings, strict=True)):
        slots = Slots(clock, setting.slots())
        clock.start(runtime.train(clock, rank, meeting, setting.pace(), slots.batch))
        clock.start(receive(trainer, slots))
    for producer, batches in enumerate(dealt):
        plan = [batch.part for batch in batches]
        clock.start(produce(nodes[producer], plan, putting_of(producer), usable_cores()))
    clock.run()
    return Executed(ranks, 0.0, {"pfs": pfs.bytes, "local": 0, "remote": wires.bytes})


def _producers(
    setting: Setting, clock: Clock, pfs: FileSystem, shares: Sequence[float]
) -> Callable[[int, Sequence[PlanBatch], Put, float | None], Process]:
    """How a producer of a node reads its plan ahead and puts batch after batch; the last argument: its cores."""
    cut = setting.read_rules
    devices, slots = runtime.Devices(pfs, setting.cache_device(clock), setting.cores(clock)), setting.slots()

    def produce(node: int, plan: Sequence[PlanBatch], put: Put, cores: float | None) -> Process:
        work = chunks(cut, [part.ids for part in plan], [shares[part.epoch] for part in plan])
        rank = runtime.SimulatedRank(node, work, len(plan))
        fetch = partial(
            runtime.fetch_reads,
            clock,
            rank,
            devices,
            runtime.Handles(open_files_per_rank(setting.dataset), pfs.open_seconds),
        )
        ahead = runtime.Ahead(clock, rank, fetch, setting.reading(work, cores=cores), slots, FREELY)
        for step in range(len(plan)):
            yield from ahead.batch(step)
            yield from put(step)

    return produce


def _plans(setting: Setting) -> list[list[PlanBatch]]:
    """What every rank asks for."""
    return [
        [PlanBatch(epoch, step) for epoch, ids in enumerate(of_rank) for step in ids] for of_rank in setting.plans.ids
    ]


def _in_turn(dealt: Sequence[Sequence[Dealt]], nodes: Sequence[int]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """See cached_shares: what producers of these nodes read, position after position."""
    by_position: dict[int, list[tuple[int, int, Sequence[int]]]] = defaultdict(list)
    for node, batches in zip(nodes, dealt, strict=True):
        for batch in batches:
            by_position[batch.position].append((batch.part.epoch, node, batch.part.ids.tolist()))
    for position in sorted(by_position):
        yield from by_position[position]
