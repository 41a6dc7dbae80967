"""A delivery whose samples come from the tiers of all nodes: the placements of samples, carried out on files."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dlio_bench.batches import Batch, Ids
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, UsageError
from dlio_bench.harness.cluster.comm import together
from dlio_bench.harness.cluster.peers import Peers, Serving
from dlio_bench.harness.plan.placement.rule import Placement
from dlio_bench.harness.readers.placed.claims import Claims
from dlio_bench.harness.readers.placed.filling import Filling
from dlio_bench.harness.readers.placed.keeper import Keeper
from dlio_bench.harness.readers.placed.layout import Layout, Sequences, lay_out
from dlio_bench.harness.readers.placed.source import Source
from dlio_bench.harness.readers.placed.sources import Places, Sources
from dlio_bench.harness.readers.placed.speeds import Speeds
from dlio_bench.harness.readers.placed.supply import Supply
from dlio_bench.harness.readers.placed.tiers import RAM, Tiers
from dlio_bench.harness.readers.sample_view import SampleView, stored_by_epoch
from dlio_bench.harness.readers.session import Plan, Planned, Reader, Tally
from dlio_bench.harness.storage import cache, shelf, tier
from dlio_bench.harness.storage.extents import ExtentReader

if TYPE_CHECKING:
    from dlio_bench.harness.readers.registry import RankContext  # which imports this file

Delivery = Callable[[Callable[[], Source]], Reader]
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
        form: SampleView,
        delivery: Delivery,
        extents: Open,
        seat: "RankContext",
        tiers: Tiers,
        *,
        threads: int,
    ) -> None:
        """`delivery(open)` makes the reader of a source; `extents(decoded)` opens the files.

        UsageError where no tier is given, or the policy cannot work with tiers of these sizes.
        """
        self._rule, self._seat, self._tiers, self._threads = rule, seat, tiers, threads
        self._extents = extents
        self._source: Source | None = None
        self._delivery = delivery(self._taken)
        self._speeds = Speeds(tiers.rates)
        if not tiers.names:
            raise UsageError(
                f"{rule.name} keeps samples in the tiers of each node, but none has a size. Give one, such as "
                "--tiers ram=1GB."
            )
        if tiers.disk and seat.tier is None:
            raise UsageError(
                f"{rule.name} keeps samples on node-local storage, but no folder on it is known. Give one that exists "
                "on every node with --local-tier."
            )
        assert rule.keep is not None
        nothing = [np.zeros(0, np.int32)] * seat.nodes
        rule.keep(nothing, tiers.sizes_of(form), tiers.capacities, 1)  # whether it works here at all

    @property
    def form(self) -> SampleView:
        """See Reader.form."""
        return self._delivery.form

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

    def asks(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.asks: what the file system would be asked for without tiers (see Cost)."""
        return stored_by_epoch(self.form, [(batch.epoch, batch.ids) for batch in plan])

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        comm, decoded = self._seat.comm, self.form.decode is not None
        with ExitStack() as stack:
            read = self._sequences(plan)
            dataset = self.form.dataset
            # what validation reads beside the training samples lies behind them
            last = max((int(batch.ids.max()) for batch in plan if len(batch.ids)), default=0)
            beyond = max(comm.allgather(last)) >= dataset.training_samples
            samples = dataset.samples if beyond else dataset.training_samples
            sizes, stored = self._tiers.sizes_of(self.form, samples), self._tiers.stored_of(self.form, samples)
            training, capacities = dataset.training_samples, self._tiers.capacities
            layout = lay_out(self._rule, read, sizes, training, capacities, self._seat.node)
            cached = _cached(dataset)
            store = self._shelf(layout, reserve=not cached or self._rule.first)
            stack.callback(store.close)
            raw = self._extents(False)
            stack.callback(raw.close)
            straight = self._extents(True) if decoded else raw
            stack.callback(straight.close)
            claims = Claims(store.flags, layout.keeper[layout.ids] == comm.rank)
            places = Places(layout, store, claims, self._tiers.names, comm.rank)
            # others may ask, and have files opened, before the delivery has prepared its reads
            raw.expect(np.concatenate([np.zeros(0, np.int64), *(batch.ids for batch in plan)]))
            sources = Sources(places, raw, self._speeds, stored)
            keeper = Keeper(sources, guesses=self._rule.behaviour.guesses)
            supply = Supply(sources, self._rule.behaviour, self._speeds)
            if comm.size > 1:
                self._meet(sources, keeper, stack)
            sources.probe(int(sizes.mean()) if len(sizes) else 0)
            self._speeds.begin(cached=cached)
            comm.barrier()
            source = self._source = Source(self.form, supply, straight, raw, sizes)
            filling = Filling(layout, supply, keeper, comm.rank, self._threads)
            with self._delivery.session(plan, tally) as batches:
                try:
                    yield self._batches(batches, plan, tally, source, keeper, filling, supply)
                finally:
                    filling.end(tally)
            # Nobody asks any more, and those who answer may go. A rank that fails goes without this: the others then
            # read from the file system what it had, until the job is ended.
            comm.barrier()
        tally.add(keeper.served)

    def _batches(
        self,
        batches: Iterator[Batch],
        plan: Sequence[Planned],
        tally: Tally,
        source: Source,
        keeper: Keeper,
        filling: Filling,
        supply: Supply,
    ) -> Iterator[Batch]:
        comm = self._seat.comm
        keeper.epoch = plan[0].epoch if plan else 0
        if self._rule.first:
            together(comm, lambda: filling.all_now(copies=False))
            together(comm, lambda: filling.all_now(copies=True))
        elif not supply.bypassed:  # else there is no need yet
            filling.begin()
        for number, batch in enumerate(batches):
            if not filling.begun and not supply.bypassed:
                filling.begin()
            keeper.epoch = plan[number].epoch
            if source.incomplete:
                source.complete(number, memoryview(batch.blocks[0].data), tally.of(keeper.epoch))
            yield batch

    def _sequences(self, plan: Sequence[Planned]) -> Sequences:
        """What all nodes read. Ranks whose plans are not known from the plan itself tell each other."""
        seat = self._seat
        if isinstance(plan, Plan):
            of, epochs = plan.of, plan.epochs
        else:
            own: dict[int, Ids] = {}
            for batch in plan:
                own[batch.epoch] = np.concatenate([own.get(batch.epoch, batch.ids[:0]), batch.ids])
            everybody = seat.comm.allgather(own)
            nothing = np.zeros(0, np.int64)
            epochs = list(dict.fromkeys(epoch for found in everybody for epoch in found))  # in the plans' order

            def of(rank: int, epoch: int) -> Ids:
                ids: Ids = everybody[rank].get(epoch, nothing)
                return ids

        return Sequences(of, seat.comm.size, seat.ranks_per_node, epochs)

    def _shelf(self, layout: Layout, *, reserve: bool) -> shelf.Shelf:
        """The node's tiers: its first rank makes them, all open them, and then they have no names any more."""
        seat, sizes = self._seat, layout.bytes
        places = [shelf.SHARED_MEMORY if name == RAM else seat.tier for name in self._tiers.names]
        first = seat.comm.rank % seat.ranks_per_node == 0
        opened: list[shelf.Shelf] = []
        with ExitStack() as names:

            def make() -> list[Path]:
                folders = []
                for place in places if first else []:
                    assert place is not None
                    hold = tier.make(place, self.form.dataset.digest)
                    names.callback(hold.close)  # removes the folder
                    folders.append(hold.folder)
                if first:
                    shelf.make(folders, sizes, len(layout.ids), reserve=reserve)
                return folders

            folders = together(seat.comm, make)[seat.node * seat.ranks_per_node]
            try:
                together(seat.comm, lambda: opened.append(shelf.attach(folders, sizes)))
            except BenchError:
                for one in opened:
                    one.close()
                raise
        return opened[0]

    def _meet(self, sources: Sources, keeper: Keeper, stack: ExitStack) -> None:
        """Begin to answer the other ranks, and find out where they do."""
        comm = self._seat.comm
        token: bytes = comm.allgather(secrets.token_bytes(16) if comm.rank == 0 else b"")[0]
        serving = Serving(keeper.answer, token=token)
        stack.callback(serving.close)
        sources.peers = Peers(comm.allgather(serving.address), token)
        stack.callback(sources.peers.close)

    def _taken(self) -> Source:
        assert self._source is not None
        return self._source


def _cached(dataset: Dataset) -> bool:
    """Whether the training files lie in this node's page cache, as far as a few of them tell."""
    files = len(dataset.training_files)
    paths = [dataset.path(file) for file in range(0, files, -(-files // LOOKED_AT_FILES))]
    try:
        found = cache.residency(paths)
    except BenchError:  # nobody can tell: it will show
        return False
    return found.share >= CACHED and (found.attestable or found.memory_backed)
