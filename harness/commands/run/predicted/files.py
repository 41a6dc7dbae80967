"""A reader that has no placement, or one of whole files, on the virtual clock."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.system import Tier
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.devices import FileSystem, exchange
from dlio_bench.harness.commands.run.predicted.runtime import chunks, open_files_per_rank
from dlio_bench.harness.commands.run.predicted.setting import Executed, Setting
from dlio_bench.harness.plan.placement.files import Share
from dlio_bench.harness.plan.policies import ON_DEMAND
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.simulator.kernel import Clock, Process
from dlio_bench.harness.storage import tier

DIRTY = 0.1  # of memory: vm.dirty_background_ratio, whose default is 10 % (Linux, admin-guide/sysctl/vm.rst)


def execute_files(setting: Setting) -> Executed:
    """Run a reader that has no placement, or one of whole files."""
    job, dataset, system, row, plans = setting.job, setting.dataset, setting.system, setting.row, setting.plans
    clock, sample_view = Clock(), setting.sample_view
    pfs = FileSystem(clock, system, job.nodes)
    shares = _shares(setting, sample_view)
    read_from, write_to = _local(setting, shares)
    copies, writing = setting.memory(clock, read_from), setting.memory(clock, write_to, write=True)
    devices = runtime.Devices(copies if shares else pfs, setting.cache_device(clock), setting.cores(clock))
    epochs = [epoch for epoch, ids in enumerate(plans.ids[0]) for _ in ids]  # of each step
    hits = [0.0] * job.epochs if shares else setting.cached_shares(setting.side_by_side())
    cached = [hits[epoch] for epoch in epochs]
    ranks = [
        setting.rank(number, chunks(setting.read_rules, [step for ids in of_rank for step in ids], cached))
        for number, of_rank in enumerate(plans.ids)
    ]
    meetings, pace, slots, staged = setting.meetings(clock), setting.pace(), setting.slots(), [0.0]
    reading = setting.reading(ranks[0].chunks, copies=read_from if shares else None)

    def run_rank(number: int) -> Process:
        rank, meeting = ranks[number], meetings[number]
        if shares:
            entries = dataset.manifest.files
            pieces = [[length for _, length in tier.pieces(entries[file].bytes)] for file in shares[number].reads]
            yield from runtime.staging(clock, rank.node, pieces, pfs, writing, job.threads)
            yield from meeting.meet()
            yield from exchange(clock, system, [_exchanged_bytes(share, dataset) for share in shares])
            staged[0] = clock.now
        handles = runtime.Handles(open_files_per_rank(dataset), devices.stored.open_seconds)
        fetch = partial(runtime.fetch_reads, clock, rank, devices, handles)
        if row.delivery == ON_DEMAND:
            batch = runtime.on_demand(rank, fetch)
        else:
            batch = runtime.Ahead(clock, rank, fetch, reading, slots, pace).batch
        yield from runtime.train(clock, rank, meeting, pace, batch)

    for number in range(job.ranks):
        clock.start(run_rank(number))
    clock.run()
    return Executed(ranks, staged[0], {"pfs": pfs.bytes, "local": copies.bytes if shares else 0})


def _shares(setting: Setting, sample_view: SampleView) -> list[Share]:
    """What each rank stages; nothing where nothing is staged."""
    job, dataset, copied = setting.job, setting.dataset, setting.row.rule.files
    if copied is None:
        return []
    files = len(dataset.training_files)
    wants = [
        np.unique(dataset.locate(np.concatenate([epoch.ravel() for epoch in own]), sample_view.fields)[0])
        for own in setting.plans.ids
    ]
    return [copied.share(wants, files, job.ranks_per_node, rank) for rank in range(job.ranks)]


def _local(setting: Setting, shares: Sequence[Share]) -> tuple[Tier, Tier]:
    """Where copies are read from and written to: memory if they fit into it, else the node's disk.

    The kernel keeps up to the share DIRTY of memory unwritten, and writes what is beyond it.
    """
    disk, ram = setting.system.tiers[-1], setting.system.tiers[1]
    entries, memory = setting.dataset.manifest.files, setting.job.node_memory
    kept = [sum(entries[file].bytes for file in share.kept.tolist()) for share in shares[:: setting.job.ranks_per_node]]
    most = max(kept, default=0)
    return ram if most < memory / 2 else disk, ram if most < DIRTY * memory else disk


def _exchanged_bytes(share: Share, dataset: Dataset) -> int:
    """Bytes that a rank sends to and receives from others."""
    entries = dataset.manifest.files
    sent = sum(entries[file].bytes for file, _ in share.sends)
    return sent + sum(entries[file].bytes for file, _ in share.receives)
