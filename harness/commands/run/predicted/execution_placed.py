"""A reader that keeps samples in the tiers of all nodes, on the virtual clock."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.chunks import Cut, chunks, is_packed
from dlio_bench.harness.commands.run.predicted.devices import FileSystem
from dlio_bench.harness.commands.run.predicted.execution import Executed, Setting, cache_device, caches
from dlio_bench.harness.commands.run.predicted.keeping import Costs, Keeping, NodeTiers
from dlio_bench.harness.readers.placed.layout import Layout, Sequences, lay_out
from dlio_bench.harness.readers.placed.rules import bypassed, filling_threads, groups, rival
from dlio_bench.harness.readers.placed.tiers import DISK, RAM, Speeds
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.readers.threads import Readers
from dlio_bench.harness.simulator.kernel import Clock, Meeting, Process
from dlio_bench.harness.storage.extents import CHUNK_BYTES


def layouts(setting: Setting) -> list[Layout]:
    """Where every sample lies, by node."""
    job, plans, tiers = setting.job, setting.plans, setting.job.tiers
    sizes, epochs = tiers.sizes_of(setting.sample_view), range(len(plans.ids[0]))
    read = Sequences(lambda rank, epoch: plans.ids[rank][epoch].ravel(), job.ranks, job.ranks_per_node, epochs)
    row = setting.row.rule
    return [lay_out(row, read, sizes, len(sizes), tiers.capacities, node) for node in range(job.nodes)]


def all_bypass(setting: Setting, nodes: Sequence[Layout]) -> bool:
    """Whether the file system is the fastest source on all nodes, so that the reader leaves their tiers empty.

    A reader measures the rate of the file system as it reads. The model takes the rate of a thread while all threads
    read, as if the rank had read an epoch.
    """
    job, system, behaviour = setting.job, setting.system, setting.row.rule.behaviour
    speeds, names = _speeds(setting), setting.job.tiers.names
    if job.cache != "warm":
        share = min(system.pfs.at(job.nodes) / job.nodes, system.pfs_link) / setting.threads
        epoch = int(setting.job.tiers.sizes_of(setting.sample_view)[setting.plans.ids[0][0]].sum())
        speeds.saw_file_system(epoch, epoch / (share * MB))
    return all(bypassed(behaviour, rival(layout, names), speeds.file_system_beats) for layout in nodes)


def _speeds(setting: Setting) -> Speeds:
    """What a rank knows before its first read."""
    tiers, speeds = setting.job.tiers, Speeds(setting.job.tiers.rates)
    speeds.begin(cached=setting.job.cache == "warm")
    speeds.saw_memory(round(setting.tier(tiers.names[0]).read.at(1) * MB), 1.0)
    return speeds


def execute_placed(setting: Setting, nodes: Sequence[Layout]) -> Executed:
    """See execution.execute. nodes: their `layouts`."""
    job, system, row = setting.job, setting.system, setting.row.rule
    clock, sample_view, tiers = Clock(), setting.sample_view, setting.job.tiers
    pfs = FileSystem(clock, system, job.nodes)
    rates = [setting.tier(name) for name in tiers.names]
    kept = [setting.memory(clock, tier) for tier in rates]
    costs = Costs(
        _reads(setting, sample_view).__getitem__,
        tiers.sizes_of(sample_view).tolist(),
        pfs,
        cache_device(setting, clock),
        caches(setting),
        kept,
        [setting.memory(clock, tier, write=True) for tier in rates],
        system.network * MB or float("inf"),
        setting.cores(clock),
        1 / (system.preprocess * MB) if is_packed(setting.dataset) and sample_view.decode is None else 0.0,
        pfs.open_seconds if setting.dataset.file_per_sample else 0.0,
    )
    node_tiers = [NodeTiers(layout, tiers.names) for layout in nodes]
    keeping = Keeping(clock, node_tiers, row.behaviour, costs, [_speeds(setting) for _ in range(job.ranks)])
    ranks = [setting.rank(number, _groups(setting, sample_view, number)) for number in range(job.ranks)]
    meeting, pace, slots = Meeting(clock, job.ranks, system.barrier), setting.pace(), setting.slots()
    filling, staged = filling_threads(job.threads), [0.0]
    reading = Readers(0, trainer=False)
    if ranks[0].chunks:
        samples, of_batch = ranks[0].chunks[0].samples, sum(chunk.step == 0 for chunk in ranks[0].chunks)
        reads = [size for sample in samples for size in costs.reads(sample)]
        opens = len(samples) if costs.open_seconds else 0
        seconds = setting.file_system_seconds([] if job.cache == "warm" else reads, opens)
        reading = setting.readers(sum(reads), seconds, of_batch, ranks[0].chunks[0].decode_seconds)

    def run(number: int) -> Process:
        for copies in (False, True) if row.first else ():
            yield from runtime.together(clock, list(keeping.fill(number, filling, copies=copies, patient=False)))
            yield from meeting.meet()
            staged[0] = clock.now
        if not row.first:
            for filler in keeping.fill(number, filling, copies=False, patient=True):
                clock.start(filler)

        def complete(step: int) -> Process:
            yield from keeping.complete(number, step)
            if step + 1 == pace.first_behind_pause(step):
                for cache in costs.caches:
                    cache.clear()

        ahead = runtime.Ahead(clock, ranks[number], lambda chunk: keeping.fetch(number, chunk), reading, slots)
        yield from ahead.trainer(meeting, pace, complete)
        keeping.end(number)

    for number in range(job.ranks):
        clock.start(run(number))
    clock.run()
    by_tier = {name: source.bytes for name, source in zip(tiers.names, kept, strict=True)}
    read_bytes = {"pfs": pfs.bytes, "local": by_tier.get(DISK, 0), "ram": by_tier.get(RAM, 0), "remote": keeping.remote}
    return Executed(ranks, staged[0], read_bytes)


def _reads(setting: Setting, sample_view: SampleView) -> list[list[int]]:
    """For each training sample the bytes of each of its reads, undecoded."""
    samples = setting.dataset.training_samples
    raw = Cut(SampleView(sample_view.dataset, sample_view.fields), setting.job.options.check_crc, float("inf"))
    reads: list[list[int]] = [[] for _ in range(samples)]
    for chunk in chunks(raw, list(np.arange(samples, dtype=np.int64)[:, None]), [0.0] * samples):
        reads[chunk.step] += [size for _, size in chunk.reads]
    return reads


def _groups(setting: Setting, sample_view: SampleView, number: int) -> list[runtime.Chunk]:
    """The groups of samples that a rank's threads take at a time (see readers/placed/tiered_extents.py)."""
    plan = [step for epoch in setting.plans.ids[number] for step in epoch]
    ids, _, rows, batches = groups(plan, sample_view.sizes, CHUNK_BYTES, of_one=setting.dataset.file_per_sample)
    decoded = 0.0 if sample_view.decode is None else 1 / (setting.system.preprocess * MB)
    rank_chunks = []
    for step, part in zip(batches.tolist(), np.split(ids, rows[1:-1]), strict=True):
        seconds = sample_view.stored(part) * decoded if decoded else 0.0
        rank_chunks.append(runtime.Chunk(step, (), seconds, samples=tuple(part.tolist())))
    return rank_chunks
