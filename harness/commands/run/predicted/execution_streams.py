"""A reader of streams on the virtual clock: producers read the plan and publish it, trainers take what is theirs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from dlio_bench.harness.cluster.environment import usable_cores
from dlio_bench.harness.cluster.system import STAGING
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.chunks import Cut, chunks, handles_kept
from dlio_bench.harness.commands.run.predicted.devices import FileSystem
from dlio_bench.harness.commands.run.predicted.execution import (
    Executed,
    Setting,
    cache_device,
    cached_shares,
    side_by_side,
)
from dlio_bench.harness.commands.run.predicted.streaming import Coming, Queue, Slots, Wires, rates_of, receiver
from dlio_bench.harness.simulator.kernel import Clock, Meeting, Process
from dlio_bench.harness.streams.dealing import Dealt, Part, batches_of_producer, putting, steps_of_rank
from dlio_bench.harness.streams.settings import ROUND_ROBIN

FREELY = runtime.Pace(0.0, "none", 1)  # producers do not compute and do not wait for each other
Put: TypeAlias = Callable[[int], Process]  # hands a step of a producer's plan over


def execute_streams(setting: Setting) -> Executed:
    """See execution.execute. Producers are ranks of their own, or threads of the trainers' processes (--inline)."""
    assert setting.job.streaming is not None
    return _inline(setting) if setting.job.streaming.inline else _published(setting)


def _inline(setting: Setting) -> Executed:
    """readers/inline.py: a thread reads the plan of the trainer beside it, and copies batches into slots for it."""
    job, clock = setting.job, Clock()
    assert job.streaming is not None
    pfs, meetings = FileSystem(clock, setting.system, job.nodes), setting.meetings(clock)
    copying = setting.memory(clock, setting.tier(STAGING), write=True)
    produce = _producers(setting, clock, pfs, cached_shares(setting, side_by_side(setting)))
    ranks = [setting.rank(number, ()) for number in range(job.ranks)]

    def handing(rank: runtime.Rank, sizes: Sequence[int], slots: Slots) -> Put:
        def put(step: int) -> Process:
            yield from slots.take()
            yield from copying.read(rank.node, sizes[step])
            slots.fill()

        return put

    for rank, plan, meeting in zip(ranks, _plans(setting), meetings, strict=True):
        slots = Slots(clock, job.streaming.queue)
        sizes = [setting.bytes_of(part.ids) for part in plan]
        clock.start(slots.trainer(rank, meeting, setting.pace()))
        clock.start(produce(rank.node, plan, handing(rank, sizes, slots), None))
    clock.run()
    return Executed(ranks, 0.0, {"pfs": pfs.bytes, "local": 0})


def _published(setting: Setting) -> Executed:
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
    wires = Wires(clock, rates_of(setting.system, virtual=job.virtual, nodes=job.nodes)[0], producers)
    held, streams = streaming.steps_held(mode, job.ranks), 1 if mode.shared else job.ranks
    queues = [[Queue(clock, held, job.ranks if mode.shared else 1) for _ in range(streams)] for _ in range(producers)]
    sizes = [{(each.position, each.rank): setting.bytes_of(each.part.ids) for each in batches} for batches in dealt]

    def putting_of(producer: int) -> Put:
        def put(step: int) -> Process:
            batch = dealt[producer][step]
            for stream in putting(mode, batch.rank, models):
                copied = copying.read(nodes[producer], sizes[producer][batch.position, batch.rank])
                yield from queues[producer][stream].put(copied)

        return put

    def coming(trainer: int) -> Iterator[Coming]:
        """The steps of a trainer, as ADIOS2 deals them."""
        rank, place = models[trainer][1], trainer if mode.shared else 0
        next_step = dict.fromkeys(range(producers), place if mode.name == ROUND_ROBIN else 0)
        for step in steps_of_rank(len(plans[0]), len(plans), mode.name, rank, producers):
            number = next_step[step.producer]
            next_step[step.producer] += job.ranks if mode.name == ROUND_ROBIN else 1
            size = None if step.position is None else sizes[step.producer][step.position, rank]
            queue = queues[step.producer][0 if mode.shared else trainer]
            yield Coming(queue, step.producer, place, number, size)

    produce = _producers(setting, clock, pfs, cached_shares(setting, _in_turn(dealt, nodes)))
    ranks = [setting.rank(number, ()) for number in range(job.ranks)]
    for trainer, (rank, meeting) in enumerate(zip(ranks, meetings, strict=True)):
        slots = Slots(clock, setting.slots())
        clock.start(slots.trainer(rank, meeting, setting.pace()))
        clock.start(receiver(slots, wires, coming(trainer)))
    for producer, batches in enumerate(dealt):
        plan = [batch.part for batch in batches]
        clock.start(produce(nodes[producer], plan, putting_of(producer), usable_cores()))
    clock.run()
    return Executed(ranks, 0.0, {"pfs": pfs.bytes, "local": 0, "remote": wires.bytes})


def _producers(
    setting: Setting, clock: Clock, pfs: FileSystem, shares: Sequence[float]
) -> Callable[[int, Sequence[Part], Put, float | None], Process]:
    """How a producer of a node reads its plan ahead and puts batch after batch; the last argument: its cores."""
    cut = Cut(setting.sample_view, setting.job.options.check_crc, setting.system.preprocess)
    devices, slots = runtime.Devices(pfs, cache_device(setting, clock), setting.cores(clock)), setting.slots()

    def produce(node: int, plan: Sequence[Part], put: Put, cores: float | None) -> Process:
        work = chunks(cut, [part.ids for part in plan], [shares[part.epoch] for part in plan])
        rank = runtime.Rank(node, work, len(plan))
        fetch = partial(
            runtime.fetch_reads, clock, rank, devices, runtime.Handles(handles_kept(setting.dataset), pfs.open_seconds)
        )
        ahead = runtime.Ahead(clock, rank, fetch, setting.reading(work, cores=cores), slots)
        return ahead.trainer(Meeting(clock, 1, 0.0), FREELY, put)

    return produce


def _plans(setting: Setting) -> list[list[Part]]:
    """What every rank asks for."""
    return [[Part(epoch, step) for epoch, ids in enumerate(of_rank) for step in ids] for of_rank in setting.plans.ids]


def _in_turn(dealt: Sequence[Sequence[Dealt]], nodes: Sequence[int]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """See cached_shares: what producers of these nodes read, position after position."""
    by_position: dict[int, list[tuple[int, int, Sequence[int]]]] = defaultdict(list)
    for node, batches in zip(nodes, dealt, strict=True):
        for batch in batches:
            by_position[batch.position].append((batch.part.epoch, node, batch.part.ids.tolist()))
    for position in sorted(by_position):
        yield from by_position[position]
