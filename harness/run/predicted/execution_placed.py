"""A reader that keeps samples in the tiers of all nodes, on the virtual clock."""

import numpy as np

from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.readers.placed.layout import Sequences, lay_out
from dlio_bench.harness.readers.placed.speeds import AT_MEMORY_SPEED, PFS, REMOTE
from dlio_bench.harness.readers.placed.tiers import DISK, RAM
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.run.predicted import runtime
from dlio_bench.harness.run.predicted.chunks import Cut, chunks
from dlio_bench.harness.run.predicted.devices import FileSystem
from dlio_bench.harness.run.predicted.execution import Executed, Setting, cached_shares
from dlio_bench.harness.run.predicted.keeping import Costs, Keeping, Shelf
from dlio_bench.harness.simulator.kernel import Clock, Meeting, Process
from dlio_bench.harness.storage.chunks import chunk_of, joined_ids
from dlio_bench.harness.storage.extents import CHUNK_BYTES


def bypassed(setting: Setting) -> bool:
    """Whether the file system is the best source, so that the reader leaves its tiers empty (placed/speeds.py)."""
    job, system, behaviour = setting.job, setting.system, setting.row.rule.behaviour
    if behaviour.waits or not behaviour.ahead_pfs:
        return False
    own, rates = job.tiers.names[0], job.tiers.rates
    source = REMOTE if job.nodes > 1 else own
    if rates is not None and PFS in rates and source in rates:
        return rates[PFS] > rates[source]
    if max(cached_shares(setting)[1:], default=0.0) > 0.5:  # the page cache serves most of what was read once
        return True
    # of a thread, while all threads of all nodes read
    share = min(system.pfs.at(job.nodes) / job.nodes, system.pfs_link) / setting.threads
    return share > AT_MEMORY_SPEED * setting.tier(own).read.at(1)


def execute_placed(setting: Setting) -> Executed:
    """See execution.execute."""
    job, system, plans, rule = setting.job, setting.system, setting.plans, setting.row.rule
    clock, form = Clock(), setting.form
    tiers = job.tiers
    sizes = tiers.sizes_of(form)
    epochs = range(len(plans.ids[0]))
    read = Sequences(lambda rank, epoch: plans.ids[rank][epoch].ravel(), job.ranks, job.ranks_per_node, epochs)
    shelves = [Shelf(lay_out(rule, read, sizes, len(sizes), tiers.capacities, node)) for node in range(job.nodes)]
    pfs = FileSystem(clock, system, job.nodes)
    rates = [setting.tier(name) for name in tiers.names]
    kept = [setting.memory(clock, tier) for tier in rates]
    costs = Costs(
        _reads(setting, form).__getitem__,
        sizes.tolist(),
        pfs,
        kept,
        [setting.memory(clock, tier, write=True) for tier in rates],
        system.network * MB or float("inf"),
        pfs.open_seconds if setting.dataset.samples == len(setting.dataset.manifest.files) else 0.0,
    )
    keeping = Keeping(clock, shelves, job.ranks_per_node, rule.behaviour, costs)
    ranks = [setting.rank(number, _groups(setting, form, number)) for number in range(job.ranks)]
    meeting, pace, slots = Meeting(clock, job.ranks, system.barrier), setting.pace(), setting.slots()
    filling, staged = max(1, job.threads // 2), [0.0]
    samples = ranks[0].chunks[0].samples if ranks[0].chunks else ()
    opens = len(samples) if setting.dataset.samples == len(setting.dataset.manifest.files) else 0
    threads = setting.readers([size for sample in samples for size in costs.reads(sample)], opens)

    def run(number: int) -> Process:
        for copies in (False, True) if rule.first else ():
            yield from runtime.together(clock, list(keeping.fill(number, filling, copies=copies)))
            yield from meeting.meet()
            staged[0] = clock.now
        if not rule.first:
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


def _reads(setting: Setting, form: SampleView) -> list[list[int]]:
    """For each training sample the bytes of the reads that bring it, undecoded."""
    samples = setting.dataset.training_samples
    raw = Cut(SampleView(form.dataset, form.fields), setting.job.check_crc, float("inf"))
    found: list[list[int]] = [[] for _ in range(samples)]
    for chunk in chunks(raw, [np.arange(samples, dtype=np.int64)[:, None]], [0.0]):
        found[chunk.step] += [size for _, size in chunk.reads]
    return found


def _groups(setting: Setting, form: SampleView, number: int) -> list[runtime.Chunk]:
    """The groups of samples that a rank's threads take at a time, as of readers/placed/source.py."""
    plan = [step for epoch in setting.plans.ids[number] for step in epoch]
    ids, batches = joined_ids(plan)
    delivered = form.sizes(ids)
    starts = np.cumsum(delivered) - delivered
    counts = np.array([len(one) for one in plan], dtype=np.int64)
    rows, of_group = chunk_of(batches, starts - starts[(counts.cumsum() - counts)[batches]], CHUNK_BYTES)
    decoded = 0.0 if form.decode is None else 1 / (setting.system.preprocess * MB)
    found = []
    for step, part in zip(of_group.tolist(), np.split(ids, rows[1:-1]), strict=True):
        seconds = form.stored(part) * decoded if decoded else 0.0
        found.append(runtime.Chunk(step, (), seconds, samples=tuple(part.tolist())))
    return found
