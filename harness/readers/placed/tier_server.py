"""How a rank fetches samples into its node's tiers, and answers other ranks that ask for them."""

import threading
from collections.abc import Sequence

import numpy as np

from dlio_bench.counters import Cost
from dlio_bench.errors import BenchError
from dlio_bench.harness.cluster.peers import Piece
from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.readers.placed.backends import Backends
from dlio_bench.harness.readers.placed.claims import WAIT_SECONDS, SampleState
from dlio_bench.harness.readers.placed.layout import NOWHERE
from dlio_bench.harness.readers.placed.rules import Answer, answer
from dlio_bench.harness.readers.session import Scratch, Tally


class TierServer:
    """Fetches kept samples into their tiers before this rank needs them. Safe for several threads.

    epoch: that of the trainer, to which the cost is added.
    """

    def __init__(self, backends: Backends, behaviour: Behaviour) -> None:
        self._backends, self._behaviour = backends, behaviour
        self.epoch = 0
        self.served = Tally()  # the cost of answering other ranks
        self._lock = threading.Lock()
        self._scratch = Scratch()

    def fill(self, numbers: Sequence[int], tally: Tally, *, copies: bool = False) -> None:
        """Fetch those of `numbers`, neighbours in a tier, that no thread has fetched yet.

        `copies`: from other nodes. A sample that cannot be read stays absent: the thread that needs it raises why.
        """
        backends = self._backends
        mine = [number for number in numbers if backends.claims.take(number) is SampleState.CLAIMED]
        try:
            while mine:
                run = [mine[0]]
                while len(run) < len(mine) and mine[len(run)] == run[-1] + 1:
                    run.append(mine[len(run)])
                self._fetch_and_store(run, tally, copies=copies)
                for number in run:
                    backends.claims.settle(number, present=True)
                del mine[: len(run)]
        except BenchError:
            pass
        finally:
            for number in mine:
                backends.claims.settle(number, present=False)

    def answer(self, sample: int) -> Piece | None:
        """Where a sample lies, for another rank; fetched now if needed. None: the other is to read the file system (see
        rules.answer).
        """
        backends = self._backends
        number = int(backends.layout.number[sample])
        if number < 0:
            return None
        mine = backends.layout.keeper[sample] == backends.rank
        decision = answer(self._behaviour, backends.claims.state_of(number), mine=mine)
        if decision is Answer.REFUSE:
            return None
        if decision is Answer.BRING:
            tally = Tally()
            self.fill([number], tally, copies=bool(backends.layout.copy[number]))
            with self._lock:
                self.served.add(tally)
        if decision is not Answer.GIVE and not backends.claims.wait(number, WAIT_SECONDS):
            return None
        tier, offset = backends.place(number)
        return backends.tier_files.handles[tier], offset, int(backends.layout.size[number])

    def _fetch_and_store(self, run: Sequence[int], tally: Tally, *, copies: bool) -> None:
        """Fetch neighbours in a tier, and write them there."""
        backends = self._backends
        ids = backends.layout.ids[run[0] : run[-1] + 1]
        starts = [0, *np.cumsum(backends.layout.size[run[0] : run[-1] + 1]).tolist()]
        memory = self._scratch.of(starts[-1])
        cost = tally.of(self.epoch)
        samples, rows = ids.tolist(), list(range(len(run)))
        if copies and backends.peers is not None:
            ranks = backends.holders(samples, rows)
            rows = list(ranks.pop(NOWHERE, []))
            answered = Cost()
            for rank, rank_rows in ranks.items():
                rows += backends.fetch_rows(rank, samples, starts, memory, rank_rows, answered)
            answered.bytes_spared = 0  # not delivered to the trainer yet
            cost.add(answered)
        before = cost.bytes_requested
        backends.from_files(samples, starts, memory, sorted(rows), cost)
        cost.bytes_kept += cost.bytes_requested - before
        backends.store(run[0], memory)
