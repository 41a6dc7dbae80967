"""A delivery whose samples come from the tiers of all nodes: the placements of samples, carried out on files."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from dlio_bench.batches import Batch, Ids
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, UsageError
from dlio_bench.harness.cluster.comm import run_on_all_ranks
from dlio_bench.harness.cluster.links import Inbox
from dlio_bench.harness.cluster.peers import Peers, Serving
from dlio_bench.harness.plan.placement.rule import Placement
from dlio_bench.harness.readers.placed.backends import Backends, Locations
from dlio_bench.harness.readers.placed.claims import Claims
from dlio_bench.harness.readers.placed.layout import Sequences, TierLayout, lay_out
from dlio_bench.harness.readers.placed.rules import filling_threads
from dlio_bench.harness.readers.placed.source_picker import SourcePicker
from dlio_bench.harness.readers.placed.tier_filler import TierFiller
from dlio_bench.harness.readers.placed.tier_server import TierServer
from dlio_bench.harness.readers.placed.tiered_extents import TieredExtents
from dlio_bench.harness.readers.placed.tiers import RAM, Speeds
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import (
    Planned,
    RankPlan,
    Reader,
    SampleView,
    Tally,
    pauses_before,
    stored_by_epoch,
)
from dlio_bench.harness.storage import cache, tier_files
from dlio_bench.harness.storage.extents import ExtentReader

Delivery = Callable[[Callable[[], TieredExtents]], Reader]
Open = Callable[[bool], ExtentReader]

CACHED = 0.9  # of the files in the page cache: reads find them there
LOOKED_AT_FILES = 32


class Placed:
    """Keeps what its policy's placement says in the tiers of every node, and has `delivery` take its samples there.

    Every session starts with empty tiers, whose memory is its own and gone with it. All ranks enter and leave sessions
    together; those of policies that fill their tiers first ask for batches together, too, as the time of the filling is
    the stall of the first step. What is brought into a tier beside the run counts for the epoch that the trainer is in.
    """

    def __init__(
        self,
        rule: Placement,
        sample_view: SampleView,
        delivery: Delivery,
        extents: Open,
        context: RankContext,
        resources: Resources,
    ) -> None:
        """`delivery(open)` makes the reader of what is opened; `extents(decoded)` opens the files, whose reads pass
        the page cache if they are `direct`.

        UsageError where no tier is given, or the policy cannot work with tiers of these sizes.
        """
        tiers = resources.tiers
        self._rule, self._context, self._tiers = rule, context, tiers
        self._threads = filling_threads(resources.threads)
        self._open = extents
        self._uncached = resources.alignment is not None or sample_view.dataset.store is not None
        self._tiered: TieredExtents | None = None
        self._delivery = delivery(self._require_tiers)
        self._speeds = Speeds(tiers.rates)
        if not tiers.names:
            raise UsageError(
                f"{rule.name} keeps samples in the tiers of each node, but none has a size. Give one, such as "
                "--tiers ram=1GB."
            )
        if tiers.disk and context.tier is None:
            raise UsageError(
                f"{rule.name} keeps samples on node-local storage, but no folder on it is known. Give one that exists "
                "on every node with --local-tier."
            )
        assert rule.keep is not None
        nothing = [np.zeros(0, np.int32)] * context.nodes
        rule.keep(nothing, tiers.sizes_of(sample_view), tiers.capacities, 1)  # whether it works here at all

    @property
    def sample_view(self) -> SampleView:
        """See Reader.sample_view."""
        return self._delivery.sample_view

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        sizes = {
            f"{name}_tier_bytes": size for name, size in zip(self._tiers.names, self._tiers.capacities, strict=True)
        }
        return {**self._delivery.options, "filling_threads": self._threads, **sizes}

    @property
    def processes(self) -> tuple[int, ...]:
        """See Reader.processes."""
        return self._delivery.processes

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.requested_bytes: what the file system would be asked for without tiers (see Cost)."""
        return stored_by_epoch(self.sample_view, [(batch.epoch, batch.ids) for batch in plan])

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        comm, decoded = self._context.comm, self.sample_view.decode is not None
        with ExitStack() as stack:
            read = self._sequences(plan)
            dataset = self.sample_view.dataset
            # what validation reads beside the training samples lies behind them
            last = max((int(batch.ids.max()) for batch in plan if len(batch.ids)), default=0)
            beyond = max(comm.allgather(last)) >= dataset.training_samples
            samples = dataset.samples if beyond else dataset.training_samples
            sizes = self._tiers.sizes_of(self.sample_view, samples)
            stored = self._tiers.stored_of(self.sample_view, samples)
            training, capacities = dataset.training_samples, self._tiers.capacities
            layout = lay_out(self._rule, read, sizes, training, capacities, self._context.node)
            cached = False if self._uncached else _is_cached(dataset)
            store = self._tier_files(layout, reserve=not cached or self._rule.first)
            stack.callback(store.close)
            raw = self._open(False)
            stack.callback(raw.close)
            straight = self._open(True) if decoded else raw
            stack.callback(straight.close)
            claims = Claims(store.flags, layout.keeper[layout.ids] == comm.rank)
            locations = Locations(layout, store, claims, self._tiers.names, comm.rank)
            # others may ask, and have files opened, before the delivery has prepared its reads
            raw.expect(np.concatenate([np.zeros(0, np.int64), *(batch.ids for batch in plan)]))
            backends = Backends(locations, raw, self._speeds, stored)
            server = TierServer(backends, self._rule.behaviour)
            picker = SourcePicker(backends, self._rule.behaviour, self._speeds)
            if comm.size > 1:
                self._connect_peers(backends, server, stack)
            backends.probe(int(sizes.mean()) if len(sizes) else 0)
            self._speeds.begin(cached=cached)
            comm.barrier()
            tiered = self._tiered = TieredExtents(self.sample_view, picker, straight, raw, sizes)
            filler = TierFiller(layout, picker, server, comm.rank, self._threads)
            tally.parts += [server.served, filler.filled]
            with self._delivery.session(plan, tally) as batches:
                try:
                    yield self._batches(batches, plan, tally, tiered, server, filler, picker)
                finally:
                    filler.end(tally)
            # Nobody asks any more, and those who answer may go. A rank that fails goes without this: the others then
            # read from the file system what it had, until the job is ended.
            comm.barrier()
        tally.add(server.served)

    def _batches(
        self,
        batches: Iterator[Batch],
        plan: Sequence[Planned],
        tally: Tally,
        tiered: TieredExtents,
        server: TierServer,
        filler: TierFiller,
        picker: SourcePicker,
    ) -> Iterator[Batch]:
        comm = self._context.comm
        server.epoch = plan[0].epoch if plan else 0
        if self._rule.first:
            run_on_all_ranks(comm, lambda: filler.all_now(copies=False))
            run_on_all_ranks(comm, lambda: filler.all_now(copies=True))
        elif not picker.bypassed:  # else there is no need yet
            filler.begin()
        pauses = pauses_before(plan)
        for number, batch in enumerate(batches):
            filler.go_on()
            if not filler.begun and not picker.bypassed:
                filler.begin()
            server.epoch = plan[number].epoch
            if tiered.incomplete:
                tiered.complete(number, memoryview(batch.blocks[0].data), tally.of(server.epoch))
            if number + 1 < len(pauses) and pauses[number + 1] > pauses[number]:
                filler.pause()
            yield batch

    def _sequences(self, plan: Sequence[Planned]) -> Sequences:
        """What all nodes read. Ranks whose plans are not known from the plan itself tell each other."""
        context = self._context
        if isinstance(plan, RankPlan):
            of, epochs = plan.of, plan.epochs
        else:
            own: dict[int, Ids] = {}
            for batch in plan:
                own[batch.epoch] = np.concatenate([own.get(batch.epoch, batch.ids[:0]), batch.ids])
            everybody = context.comm.allgather(own)
            nothing = np.zeros(0, np.int64)
            epochs = list(dict.fromkeys(epoch for found in everybody for epoch in found))  # in the plans' order

            def of(rank: int, epoch: int) -> Ids:
                ids: Ids = everybody[rank].get(epoch, nothing)
                return ids

        return Sequences(of, context.comm.size, context.ranks_per_node, epochs)

    def _tier_files(self, layout: TierLayout, *, reserve: bool) -> tier_files.TierFiles:
        """The node's tiers: its first rank makes them, and shares them with the others."""
        context, comm, sizes = self._context, self._context.comm, layout.bytes
        places = [None if name == RAM else context.tier for name in self._tiers.names]
        first = context.node * context.ranks_per_node
        handles: list[int] = []
        with Inbox() as inbox:
            others = comm.allgather(inbox.where)[first + 1 : first + context.ranks_per_node]

            def make() -> None:
                if comm.rank == first:
                    handles.extend(tier_files.make(places, sizes, len(layout.ids), reserve=reserve))
                    tier_files.share(handles, others)

            def take() -> None:
                if comm.rank != first:
                    handles.extend(tier_files.take(inbox, sizes))

            try:
                run_on_all_ranks(comm, make)
                run_on_all_ranks(comm, take)
            except BenchError:
                tier_files.close(handles)
                raise
        return tier_files.tier_files_of(handles, places, sizes)

    def _connect_peers(self, backends: Backends, server: TierServer, stack: ExitStack) -> None:
        """Begin to answer the other ranks, and find out where they do."""
        comm = self._context.comm
        token: bytes = comm.allgather(secrets.token_bytes(16) if comm.rank == 0 else b"")[0]
        serving = Serving(server.answer, token=token, host=self._context.address)
        stack.callback(serving.close)
        backends.peers = Peers(comm.allgather(serving.address), token)
        stack.callback(backends.peers.close)

    def _require_tiers(self) -> TieredExtents:
        assert self._tiered is not None
        return self._tiered


def _is_cached(dataset: Dataset) -> bool | None:
    """Whether the training files lie in this node's page cache, by a sample of them; None: the kernel does not say."""
    if dataset.access.emulated:
        return False
    files = len(dataset.training_files)
    paths = [dataset.path(file) for file in range(0, files, -(-files // LOOKED_AT_FILES))]
    try:
        found = cache.residency(paths)
    except BenchError:  # it will show
        return None
    return found.share >= CACHED if found.attestable or found.memory_backed else None
