"""A reader that keeps samples in the tiers of all nodes, on the virtual clock."""

import numpy as np

from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.plan.placement.rows import ROWS
from dlio_bench.harness.readers.placed.layout import Sequences, lay_out
from dlio_bench.harness.readers.placed.speeds import AT_MEMORY_SPEED, PFS, REMOTE
from dlio_bench.harness.readers.placed.tiers import DISK, RAM, Tiers
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.run.predicted import runtime
from dlio_bench.harness.run.predicted.chunks import Cut, chunks
from dlio_bench.harness.run.predicted.devices import FileSystem
from dlio_bench.harness.run.predicted.execution import Executed, Setting, cached_shares
from dlio_bench.harness.run.predicted.keeping import Costs, Keeping, NodeTiers
from dlio_bench.harness.simulator.kernel import Clock, Meeting, Process
from dlio_bench.harness.storage.chunks import chunk_of, joined_ids
from dlio_bench.harness.storage.extents import CHUNK_BYTES


def bypassed(setting: Setting) -> bool:
    """Whether the file system is the best source, so that the reader leaves its tiers empty (placed/speeds.py)."""
    job, system, behaviour = setting.job, setting.system, ROWS[setting.row.placement].behaviour
    if behaviour.waits or not behaviour.ahead_pfs:
        return False
    own = Tiers(job.ram_bytes, job.disk_bytes).names[0]
    source = REMOTE if job.nodes > 1 else own
    if job.rates is not None and PFS in job.rates and source in job.rates:
        return job.rates[PFS] > job.rates[source]
    if max(cached_shares(setting)[1:], default=0.0) > 0.5:  # the page cache serves most of what was read once
        return True
    # of a thread, while all threads of all nodes read
    share = min(system.pfs.at(job.nodes) / job.nodes, system.pfs_link) / setting.threads
    return share > AT_MEMORY_SPEED * setting.tier(own).read.at(1)


def execute_placed(setting: Setting) -> Executed:
    """See execution.execute."""
    job, system, plans, one = setting.job, setting.system, setting.plans, ROWS[setting.row.placement]
    clock, sample_view = Clock(), setting.sample_view
    tiers = Tiers(job.ram_bytes, job.disk_bytes)
    sizes = tiers.sizes_of(sample_view)
    epochs = range(len(plans.ids[0]))
    read = Sequences(lambda rank, epoch: plans.ids[rank][epoch].ravel(), job.ranks, job.ranks_per_node, epochs)
    nodes = [NodeTiers(lay_out(one, read, sizes, len(sizes), tiers.capacities, node)) for node in range(job.nodes)]
    pfs = FileSystem(clock, system, job.nodes)
    rates = [setting.tier(name) for name in tiers.names]
    kept = [setting.memory(clock, tier) for tier in rates]
    costs = Costs(
        _reads(setting, sample_view).__getitem__,
        sizes.tolist(),
        pfs,
        kept,
        [setting.memory(clock, tier, write=True) for tier in rates],
        system.network * MB or float("inf"),
        pfs.open_seconds if setting.dataset.samples == len(setting.dataset.manifest.files) else 0.0,
    )
    keeping = Keeping(clock, nodes, job.ranks_per_node, one.behaviour, costs)
    ranks = [setting.rank(number, _groups(setting, sample_view, number)) for number in range(job.ranks)]
    meeting, pace, slots = Meeting(clock, job.ranks, system.barrier), setting.pace(), setting.slots()
    filling, staged = max(1, job.threads // 2), [0.0]
    samples = ranks[0].chunks[0].samples if ranks[0].chunks else ()
    opens = len(samples) if setting.dataset.samples == len(setting.dataset.manifest.files) else 0
    threads = setting.readers([size for sample in samples for size in costs.reads(sample)], opens)

    def run(number: int) -> Process:
        for copies in (False, True) if one.first else ():
            yield from runtime.together(clock, list(keeping.fill(number, filling, copies=copies)))
            yield from meeting.meet()
            staged[0] = clock.now
        if not one.first:
            for filler in keeping.fill(number, filling, copies=False):
                clock.start(filler)
        ahead = runtime.Ahead(clock, ranks[number], lambda chunk: keeping.fetch(number, chunk), threads, slots)
        yield from ahead.trainer(meeting, pace, lambda step: keeping.complete(number, step))

    for number in range(job.ranks):
        clock.start(run(number))
    clock.run()
    by_tier = {name: source.bytes for name, source in zip(tiers.names, kept, strict=True)}
    found = {"pfs": pfs.bytes, "local": by_tier.get(DISK, 0), "ram": by_tier.get(RAM, 0), "remote": keeping.remote}
    return Executed(ranks, staged[0], found)


def _reads(setting: Setting, sample_view: SampleView) -> list[list[int]]:
    """For each training sample the bytes of the reads that bring it, undecoded."""
    samples = setting.dataset.training_samples
    raw = Cut(SampleView(sample_view.dataset, sample_view.fields), setting.job.check_crc, float("inf"))
    found: list[list[int]] = [[] for _ in range(samples)]
    for chunk in chunks(raw, [np.arange(samples, dtype=np.int64)[:, None]], [0.0]):
        found[chunk.step] += [size for _, size in chunk.reads]
    return found


def _groups(setting: Setting, sample_view: SampleView, number: int) -> list[runtime.Chunk]:
    """The groups of samples that a rank's threads take at a time, as of readers/placed/tiered_extents.py."""
    plan = [step for epoch in setting.plans.ids[number] for step in epoch]
    ids, batches = joined_ids(plan)
    delivered = sample_view.sizes(ids)
    starts = np.cumsum(delivered) - delivered
    counts = np.array([len(one) for one in plan], dtype=np.int64)
    rows, of_group = chunk_of(batches, starts - starts[(counts.cumsum() - counts)[batches]], CHUNK_BYTES)
    decoded = 0.0 if sample_view.decode is None else 1 / (setting.system.preprocess * MB)
    found = []
    for step, part in zip(of_group.tolist(), np.split(ids, rows[1:-1]), strict=True):
        seconds = sample_view.stored(part) * decoded if decoded else 0.0
        found.append(runtime.Chunk(step, (), seconds, samples=tuple(part.tolist())))
    return found
