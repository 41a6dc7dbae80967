"""What this rank brings to its node's tiers, and how it answers other ranks that ask for it."""

import threading
from collections.abc import Sequence

import numpy as np

from dlio_bench.counters import Cost
from dlio_bench.errors import BenchError
from dlio_bench.harness.cluster.peers import Piece
from dlio_bench.harness.readers.placed.claims import WAIT_SECONDS, State
from dlio_bench.harness.readers.placed.layout import NOWHERE
from dlio_bench.harness.readers.placed.sources import Sources
from dlio_bench.harness.readers.session import Tally


class Keeper:
    """Brings kept samples to their tiers when nobody of this rank needs them yet. May be used by several threads.

    `guesses`: others guess what is here, and what they ask for is not brought for them (see Behaviour).
    epoch: the one that the trainer is in, where what is brought counts.
    """

    def __init__(self, sources: Sources, *, guesses: bool) -> None:
        self._sources, self._guesses = sources, guesses
        self.epoch = 0
        self.served = Tally()  # what answering others has cost
        self._lock = threading.Lock()
        self._scratch = threading.local()

    def fill(self, numbers: Sequence[int], tally: Tally, *, copies: bool = False) -> None:
        """Bring kept samples into their tier: those of `numbers`, neighbours in it, that nobody has brought yet.

        `copies`: they are taken from other nodes. What cannot be read stays absent: whoever needs it will say why.
        """
        sources = self._sources
        mine = [number for number in numbers if sources.claims.take(number) is State.CLAIMED]
        try:
            while mine:
                run = [mine[0]]
                while len(run) < len(mine) and mine[len(run)] == run[-1] + 1:
                    run.append(mine[len(run)])
                self._bring(run, tally, copies=copies)
                for number in run:
                    sources.claims.settle(number, present=True)
                del mine[: len(run)]
        except BenchError:
            pass
        finally:
            for number in mine:
                sources.claims.settle(number, present=False)

    def answer(self, sample: int) -> Piece | None:
        """For another rank: where a sample lies. One that this rank is to bring and nobody has yet is brought now.

        So a look-ahead that is faster than this rank's own costs the file system nothing. (Where the policy leaves it
        to guesses whether it is there, as published, it is not brought, and the other goes to the file system.)
        """
        sources = self._sources
        number = int(sources.layout.number[sample])
        if number < 0:
            return None
        if sources.claims.look(number) is not State.PRESENT:
            if sources.layout.keeper[sample] != sources.rank:
                return None
            if sources.claims.look(number) is State.ABSENT and not self._guesses:
                tally = Tally()
                self.fill([number], tally, copies=bool(sources.layout.copy[number]))
                with self._lock:
                    self.served.add(tally)
            if not sources.claims.wait(number, WAIT_SECONDS):
                return None
        tier, offset = sources.place(number)
        return sources.shelf.handles[tier], offset, int(sources.layout.size[number])

    def _bring(self, run: Sequence[int], tally: Tally, *, copies: bool) -> None:
        """Fetch neighbours in a tier, and put them there."""
        sources = self._sources
        ids = sources.layout.ids[run[0] : run[-1] + 1]
        starts = [0, *np.cumsum(sources.layout.size[run[0] : run[-1] + 1]).tolist()]
        memory = self._memory(starts[-1])
        cost = tally.of(self.epoch)
        samples, rows = ids.tolist(), list(range(len(run)))
        if copies and sources.peers is not None:
            ranks = sources.holders(samples, rows)
            rows = list(ranks.pop(NOWHERE, []))
            own = Cost()
            for rank, asked in ranks.items():
                rows += sources.ask(rank, samples, starts, memory, asked, own)
            own.bytes_spared = 0  # nobody has got them yet
            cost.add(own)
        before = cost.bytes_requested
        sources.from_files(samples, starts, memory, sorted(rows), cost)
        cost.bytes_kept += cost.bytes_requested - before
        sources.store(run[0], memory)

    def _memory(self, length: int) -> memoryview:
        memory: bytearray = getattr(self._scratch, "memory", bytearray())
        if len(memory) < length:
            memory = self._scratch.memory = bytearray(length)
        return memoryview(memory)[:length]
