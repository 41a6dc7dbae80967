"""What is predicted: one reader of a job, on a machine, with the plan that its ranks read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.environment import usable_cores
from dlio_bench.harness.cluster.system import MB, STAGING, Rates, System, Tier
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.devices import Cache, NodeCores, TierDevice
from dlio_bench.harness.commands.run.predicted.runtime import Cut
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.readers.ahead import FEWEST_SLOTS, slots_of
from dlio_bench.harness.readers.session import SampleView, largest, plan_batches
from dlio_bench.harness.readers.threads import Readers, ThreadTime, readers, spare_cores
from dlio_bench.harness.simulator.kernel import Barrier, Clock
from dlio_bench.reports.document.marks import COLD_EPOCHS


class Plans(Struct, frozen=True):
    """What every rank reads in the simulation: [rank][epoch] int64 [steps, batch]. steps, epochs: of the whole run."""

    ids: list[list[Ids]]
    steps: int
    epochs: int

    @property
    def whole(self) -> bool:
        """Whether the simulation covers the whole run."""
        return (self.simulated_steps, len(self.ids[0])) == (self.steps, self.epochs)

    @property
    def simulated_steps(self) -> int:
        """Simulated steps of an epoch."""
        return len(self.ids[0][0])


class Setting(Struct, frozen=True):
    """One reader of a job, on a machine."""

    job: Job
    dataset: Dataset
    system: System
    row: Policy
    plans: Plans

    @property
    def sample_view(self) -> SampleView:
        """What readers deliver of a sample."""
        return SampleView(self.dataset, self.job.view, self.job.decoder(self.dataset))

    @property
    def threads(self) -> int:
        """Reading threads of a node."""
        return max(self.job.threads, 1) * self.job.ranks_per_node

    def tier(self, name: str) -> Tier:
        """The machine's tier of this name, or else its tier in memory."""
        return next((tier for tier in self.system.tiers if tier.name == name), self.system.tiers[1])

    def memory(self, clock: Clock, tier: Tier, *, write: bool = False) -> TierDevice:
        """A tier on the clock."""
        return TierDevice(
            clock, tier.write if write else tier.read, self.threads, self.job.nodes, shared=self.job.virtual
        )

    def pace(self) -> runtime.StepPace:
        """What trainers do between two batches."""
        job = self.job
        return runtime.StepPace(job.step_seconds, job.sync, self.plans.simulated_steps, job.cache == COLD_EPOCHS)

    def cores(self, clock: Clock) -> NodeCores:
        """The cores of the machine, on the clock."""
        return NodeCores(clock, usable_cores(), self.job.nodes, shared=self.job.virtual)

    def meetings(self, clock: Clock) -> list[Barrier]:
        """Where each rank meets the others of its model."""
        models = [Barrier(clock, self.job.model_ranks, self.system.barrier) for _ in self.job.models]
        return [models[self.job.model_of(number)[0]] for number in range(self.job.ranks)]

    def bytes_of(self, ids: Ids) -> int:
        """Bytes that a reader delivers of these samples."""
        return int(self.sample_view.sizes(ids).sum())

    def rank(self, number: int, of: Sequence[runtime.Chunk]) -> runtime.SimulatedRank:
        """A rank that reads these chunks."""
        epochs = len(self.plans.ids[number])
        return runtime.SimulatedRank(number // self.job.ranks_per_node, of, epochs * self.plans.simulated_steps)

    def file_system_seconds(self, reads: Sequence[int], opens: int) -> float:
        """Seconds that reads (`reads`: bytes of each) and opens of the file system take a single thread."""
        stream = self.system.pfs_stream
        return opens * self.system.pfs_open + sum(stream.seconds(size) if stream else 0.0 for size in reads)

    def reading(
        self, plan_chunks: Sequence[runtime.Chunk], *, copies: Tier | None = None, cores: float | None = None
    ) -> Readers:
        """Who reads these chunks ahead. copies: the tier that has them; None: the file system. cores: see `readers`."""
        if not plan_chunks:
            return Readers(0, trainer=False)
        first = plan_chunks[0]
        sizes, of_batch = [size for _, size in first.reads], sum(chunk.step == first.step for chunk in plan_chunks)
        if copies is not None:
            seconds = sum(sizes) / (copies.read.rate_for(1) * MB)
        else:
            seconds = self.file_system_seconds([] if first.cached else sizes, len({key for key, _ in first.reads}))
        return self.readers(sum(sizes), seconds, of_batch, first.decode_seconds, cores)

    def readers(
        self, size: int, seconds: float, chunks: int, decode_seconds: float = 0.0, cores: float | None = None
    ) -> Readers:
        """Who reads ahead in a rank, as decided by the function that decides it when a reader runs.

        size, seconds: bytes of a chunk, and time to read it, which is at least that from memory. chunks: of a batch.
        cores: of the rank; None: its part of those that ranks of its machine share.
        """
        job, computed = self.job, size / (self.tier(STAGING).read.rate_for(1) * MB) + decode_seconds
        spent = ThreadTime(max(seconds + decode_seconds, computed), computed)
        cores = cores or usable_cores() / (job.ranks if job.virtual else job.ranks_per_node)
        a_step, spare, most = chunks * spent.seconds, spare_cores(cores), job.most_threads
        found = readers(spent, a_step, job.step_seconds, most=most, waiting=most, spare_cores=spare)
        return found._replace(waits=found.waits and most != job.threads)

    def slots(self) -> int:
        """Slots of the staging buffer."""
        view, plans = self.sample_view, self.plans.ids
        most = max(
            largest(plan_batches(view, [(epoch, list(ids)) for epoch, ids in enumerate(epochs)])) for epochs in plans
        )
        return max(FEWEST_SLOTS, slots_of(self.job.staging_bytes, most))

    @property
    def read_rules(self) -> Cut:
        """What decides the reads of a sample."""
        return Cut(self.sample_view, self.job.options.check_crc, self.system.preprocess)

    def cache_device(self, clock: Clock) -> TierDevice:
        """The device of a cache on the way: that of the emulated client, or the machine's memory."""
        job, memory = self.job, self.tier(STAGING)
        rate = None if job.pfs is None else job.pfs.cache_bandwidth
        if rate is None:
            return self.memory(clock, memory)
        # each node has one client, whose readers share its rate
        return TierDevice(clock, Rates(((1, min(rate / MB, memory.read.rate_for(1))),)), 1, job.nodes, shared=False)

    def caches(self) -> list[Cache]:
        """For each node the cache on the way, as it is before the run: a machine's page cache, or a client's cache."""
        job, dataset = self.job, self.dataset
        # assumes that half of memory is left for the page cache, which virtual nodes share
        page_cache = job.node_memory * (job.nodes if job.virtual else 1) // 2
        capacity = page_cache if job.pfs is None else job.pfs.cache_bytes
        stored, samples = sum(file.bytes for file in dataset.training_files), dataset.training_samples
        room = capacity * samples // max(stored, 1)
        if job.cache == "warm":
            return [Cache(samples, range(samples))] * job.nodes
        if job.pfs is None and job.virtual:
            return [Cache(room)] * job.nodes
        return [Cache(room) for _ in range(job.nodes)]

    def side_by_side(self) -> Iterator[tuple[int, int, Sequence[int]]]:
        """See cached_shares: what ranks read that read for themselves."""
        for epoch in range(len(self.plans.ids[0])):
            for step in zip(*(epochs[epoch] for epochs in self.plans.ids), strict=True):
                for rank, ids in enumerate(step):
                    yield epoch, rank // self.job.ranks_per_node, ids.tolist()

    def cached_shares(self, reads: Iterable[tuple[int, int, Sequence[int]]]) -> list[float]:
        """For each epoch the share of its samples that a cache on the way holds already, if all reads go through it.

        The cache drops what was read longest ago first. reads: (epoch, node, ids) in the order of their time.
        """
        job = self.job
        ways = self.caches()
        if job.cache == "warm":
            return [1.0] * job.epochs
        # a part of the plan only shows whether the whole dataset fits
        if not self.plans.whole and job.cache != COLD_EPOCHS:
            return [0.0, *[float(ways[0].room >= self.dataset.training_samples)] * (job.epochs - 1)]
        hits, samples, now = np.zeros(job.epochs), np.zeros(job.epochs), 0
        for epoch, node, ids in reads:
            if epoch != now and job.cache == COLD_EPOCHS:
                ways = self.caches()
            now = epoch
            hits[epoch] += sum(ways[node].has(sample) for sample in ids)
            samples[epoch] += len(ids)
        shares: list[float] = (hits / np.maximum(samples, 1)).tolist()
        return shares


class Executed(Struct, frozen=True):
    """The ranks at their end. staged: seconds before the first batch. bytes: read from each source, by its name."""

    ranks: Sequence[runtime.SimulatedRank]
    staged: float
    bytes: Mapping[str, int]
