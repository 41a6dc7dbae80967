"""Samples from the best source that has them: this node's tiers, another node, or the parallel file system.

A sample that this node is to keep is fetched once: whoever of its keeper's threads needs it first (one that fills the
staging buffer or a tier, or answers another rank) claims it, and puts it into its tier; others wait for that one.

Nobody can wait in a circle. Who holds a claim on a sample that comes from the file system waits for nothing but the
file system. Who holds a claim on a copy waits for its holder, whose claim is of the first kind. And nobody waits for
another's claim before its own are settled.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dlio_bench.batches import Cost, Ids
from dlio_bench.errors import BenchError, EnvironmentFailure
from dlio_bench.harness.cluster.peers import Peers, Piece
from dlio_bench.harness.plan.placement.rows import Behaviour
from dlio_bench.harness.readers.placed.claims import Claims, State
from dlio_bench.harness.readers.placed.layout import NOWHERE, Layout
from dlio_bench.harness.readers.placed.speeds import REMOTE, Speeds
from dlio_bench.harness.readers.placed.tiers import RAM
from dlio_bench.harness.readers.session import Tally
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.harness.storage.shelf import Shelf

WAIT_SECONDS = 20.0  # for a sample that another thread is fetching: then the file system is asked beside it
# A holder is taken to have a sample when this node's own filling of the same tier is so many samples further: nodes
# fill their tiers at about the same pace (SC'21, section 5; REMOTE_PREFETCH_OFFSET_DIFF of its runtime).
AHEAD_OF_HOLDER = 20
PROBES = 8  # reads of a tier, to see how fast memory is


@dataclass
class _Sources:
    """Rows of a request by where they come from. claimed, copies: row -> number of the sample among those kept."""

    here: list[int] = field(default_factory=list)  # a tier of this node
    busy: list[int] = field(default_factory=list)  # the same, when another thread has brought it
    files: list[int] = field(default_factory=list)
    claimed: dict[int, int] = field(default_factory=dict)  # files, to be kept
    copies: dict[int, int] = field(default_factory=dict)  # another node, to be kept
    ask: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # rank -> rows
    left: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Places:
    """A node's tiers as one of its ranks has them: where samples lie, their bytes, their states, the tiers' names."""

    layout: Layout
    shelf: Shelf
    claims: Claims
    tiers: Sequence[str]
    rank: int


class Supply:
    """The sources of one rank for one session. `get` may be called from several threads."""

    def __init__(
        self, places: Places, behaviour: Behaviour, raw: ExtentReader, speeds: Speeds, sizes: Ids, stored: Ids
    ) -> None:
        """`raw` reads samples as they are kept, undecoded.

        `sizes`, `stored` [samples]: bytes of a sample as it is kept, and as it lies in its file.
        """
        layout = self._layout = places.layout
        self._shelf, self._claims, self._tiers, self._rank = places.shelf, places.claims, places.tiers, places.rank
        self._behaviour, self._raw, self._speeds = behaviour, raw, speeds
        self.peers: Peers | None = None
        self._elsewhere = bool((layout.holder >= 0).any())  # other nodes keep samples
        # plain lists: single numbers are taken out of them much faster than out of arrays
        self._tier, self._offset = layout.tier.tolist(), layout.offset.tolist()
        self._size, self._copy = layout.size.tolist(), layout.copy.tolist()
        self.epoch = 0  # that the trainer is in: what is brought into tiers counts there
        self.progress = [0] * len(places.tiers)  # places of each tier that the filling threads have passed
        self._stored = stored
        self._probe = max(1, int(sizes.mean())) if len(sizes) else 1
        self._served = Tally()  # what answering others has cost
        self._lock = threading.Lock()
        self._scratch = threading.local()

    @property
    def bypassed(self) -> bool:
        """Whether the file system is the fastest of all, so that keeping samples would be a waste."""
        if self._behaviour.waits or not self._behaviour.ahead_pfs:
            return False
        return self._speeds.file_system_beats(REMOTE if self._elsewhere else self._tiers[0])

    def saw_file_system(self, size: int, seconds: float) -> None:
        """Somebody has read `size` bytes past this supply."""
        self._speeds.saw_file_system(size, seconds)

    # ---- for the staging buffer

    def get(self, ids: Sequence[int], starts: Sequence[int], out: memoryview, cost: Cost, *, ahead: bool) -> list[int]:
        """Fill out[starts[i]:starts[i + 1]] with sample ids[i]. Returns the rows left out.

        Those are samples that no node keeps, where the policy's threads may not read the file system `ahead`.
        """
        plan = self._sort(ids, ahead=ahead)
        number = self._layout.number
        try:
            self._from_files(ids, starts, out, sorted([*plan.files, *plan.claimed]), cost)
            self._keep(plan.claimed, starts, out)
            self._copies(ids, starts, out, plan.copies, cost)
        finally:  # whatever failed, nobody waits for a claim of ours
            for kept in [*plan.claimed.values(), *plan.copies.values()]:
                self._claims.settle(kept, present=False)
        for rank, rows in plan.ask.items():
            self._from_files(ids, starts, out, self._ask(rank, ids, starts, out, rows, cost), cost)
        for row in plan.busy:
            if self._claims.wait(int(number[ids[row]]), WAIT_SECONDS):
                plan.here.append(row)
            else:
                self._from_files(ids, starts, out, [row], cost)
        for row in plan.here:
            self._from_tier(ids[row], int(number[ids[row]]), out[starts[row] : starts[row + 1]], cost)
        return plan.left

    def _sort(self, ids: Sequence[int], *, ahead: bool) -> "_Sources":
        """Choose a source for each sample; claim those that are to be kept, and are not there."""
        found = _Sources()
        number, holder = self._layout.number, self._layout.holder
        for row, sample in enumerate(ids):
            kept = int(number[sample])
            if kept >= 0:
                self._sort_kept(row, sample, kept, found)
            elif self._may_ask(sample):
                found.ask[int(holder[sample])].append(row)
            elif ahead and not self._behaviour.ahead_pfs and holder[sample] < 0:
                found.left.append(row)
            else:
                found.files.append(row)
        return found

    def _sort_kept(self, row: int, sample: int, kept: int, found: "_Sources") -> None:
        state = self._claims.take(kept)
        if state is State.PRESENT:
            slow = self._speeds.file_system_beats(self._tiers[self._tier[kept]])
            (found.files if slow else found.here).append(row)
        elif state is State.BUSY:
            found.busy.append(row)
        elif state is State.CLAIMED:
            copied = self._copy[kept] and self.peers is not None and self._layout.holder[sample] >= 0
            (found.copies if copied else found.claimed)[row] = kept
        elif self.peers is not None:  # its keeper is asked, and brings it if it has not begun
            found.ask[int(self._layout.keeper[sample])].append(row)
        else:
            found.files.append(row)

    def _may_ask(self, sample: int) -> bool:
        """Whether another node is to be asked for a sample that this one does not keep."""
        if self.peers is None or self._layout.holder[sample] < 0:
            return False
        if self._behaviour.waits or not self._behaviour.ahead_pfs:
            return True
        if self._speeds.file_system_beats(REMOTE):
            return False
        if not self._behaviour.guesses:
            return True
        tier = int(self._layout.holder_tier[sample])
        first, last = int(self._layout.bounds[tier]), int(self._layout.bounds[tier + 1])
        # as published: the tier does not exist here, or is filled here, or far enough
        filled = self.progress[tier]
        return filled >= last - first or filled > int(self._layout.holder_place[sample]) + AHEAD_OF_HOLDER

    def _keep(self, claimed: dict[int, int], starts: Sequence[int], out: memoryview) -> None:
        """Put claimed samples, which are in `out`, into their tiers; those are claims no more."""
        for row in list(claimed):
            kept = claimed[row]
            self._store(kept, out[starts[row] : starts[row + 1]])
            del claimed[row]
            self._claims.settle(kept, present=True)

    def _copies(
        self, ids: Sequence[int], starts: Sequence[int], out: memoryview, copies: dict[int, int], cost: Cost
    ) -> None:
        """Get samples that this node keeps as copies from their holders, and keep them."""
        ranks: dict[int, list[int]] = defaultdict(list)
        for row in copies:
            ranks[int(self._layout.holder[ids[row]])].append(row)
        for rank, rows in ranks.items():
            self._from_files(ids, starts, out, self._ask(rank, ids, starts, out, rows, cost), cost)
        self._keep(copies, starts, out)

    def _ask(
        self, rank: int, ids: Sequence[int], starts: Sequence[int], out: memoryview, rows: Sequence[int], cost: Cost
    ) -> list[int]:
        """Get rows from another rank; those that it did not have."""
        assert self.peers is not None
        outs = [out[starts[row] : starts[row + 1]] for row in rows]
        started = time.perf_counter()
        found = self.peers.fetch(rank, [ids[row] for row in rows], outs)
        cost.read_seconds += time.perf_counter() - started
        got = 0
        missed = []
        for row, there, content in zip(rows, found, outs, strict=True):
            if there:
                got += len(content)
                self._raw.verify(ids[row], content)
                cost.spared += int(self._stored[ids[row]])
            else:
                missed.append(row)
        cost.remote += got
        cost.remote_misses += len(missed)
        return missed

    def _from_files(
        self, ids: Sequence[int], starts: Sequence[int], out: memoryview, rows: Sequence[int], cost: Cost
    ) -> None:
        """Read rows, ascending, from the file system: neighbours in `out` together."""
        first = 0
        while first < len(rows):
            last = first + 1
            while last < len(rows) and rows[last] == rows[last - 1] + 1:
                last += 1
            run = rows[first:last]
            self._read(np.array([ids[row] for row in run]), out[starts[run[0]] : starts[run[-1] + 1]], cost)
            first = last

    def _read(self, ids: Ids, out: memoryview, cost: Cost) -> None:
        before = cost.read_seconds
        self._raw.read(ids, out, cost)
        self._speeds.saw_file_system(len(out), cost.read_seconds - before)

    def _from_tier(self, sample: int, kept: int, out: memoryview, cost: Cost) -> None:
        tier = self._tier[kept]
        started = time.perf_counter()
        try:
            self._shelf.read(tier, self._offset[kept], out)
        except OSError as error:
            raise _broken(self._tiers[tier], error) from error
        cost.read_seconds += time.perf_counter() - started
        if self._tiers[tier] == RAM:
            cost.ram += len(out)
        else:
            cost.local += len(out)
        cost.spared += int(self._stored[sample])
        self._raw.verify(sample, out)

    def _store(self, kept: int, content: memoryview) -> None:
        tier = self._tier[kept]
        try:
            self._shelf.write(tier, self._offset[kept], content)
        except OSError as error:
            raise _broken(self._tiers[tier], error) from error

    # ---- for those who fill tiers, and for other ranks

    def fill(self, numbers: Sequence[int], tally: Tally, *, copies: bool = False) -> None:
        """Bring kept samples into their tier: those of `numbers`, neighbours in it, that nobody has brought yet.

        `copies`: they are taken from other nodes. What cannot be read stays absent: whoever needs it will say why.
        """
        mine = [number for number in numbers if self._claims.take(number) is State.CLAIMED]
        try:
            while mine:
                run = [mine[0]]
                while len(run) < len(mine) and mine[len(run)] == run[-1] + 1:
                    run.append(mine[len(run)])
                self._bring(run, tally, copies=copies)
                for number in run:
                    self._claims.settle(number, present=True)
                del mine[: len(run)]
        except BenchError:
            pass
        finally:
            for number in mine:
                self._claims.settle(number, present=False)

    def _bring(self, run: Sequence[int], tally: Tally, *, copies: bool) -> None:
        """Fetch neighbours in a tier, and put them there."""
        ids = self._layout.ids[run[0] : run[-1] + 1]
        starts = [0, *np.cumsum(self._layout.size[run[0] : run[-1] + 1]).tolist()]
        memory = self._memory(starts[-1])
        cost = tally.of(self.epoch)
        samples, rows = ids.tolist(), list(range(len(run)))
        if copies and self.peers is not None:
            ranks: dict[int, list[int]] = defaultdict(list)
            for row in rows:
                ranks[int(self._layout.holder[samples[row]])].append(row)
            rows = list(ranks.pop(NOWHERE, []))
            own = Cost()
            for rank, asked in ranks.items():
                rows += self._ask(rank, samples, starts, memory, asked, own)
            own.spared = 0  # nobody has got them yet
            cost.add(own)
        before = cost.requested
        self._from_files(samples, starts, memory, sorted(rows), cost)
        cost.kept += cost.requested - before
        self._store(run[0], memory)

    def answer(self, sample: int) -> Piece | None:
        """For another rank: where a sample lies. One that this rank is to bring and nobody has yet is brought now.

        So a look-ahead that is faster than this rank's own costs the file system nothing. (Where the policy leaves it
        to guesses whether it is there, as published, it is not brought, and the other goes to the file system.)
        """
        number = int(self._layout.number[sample])
        if number < 0:
            return None
        if self._claims.look(number) is not State.PRESENT:
            if self._layout.keeper[sample] != self._rank:
                return None
            if self._claims.look(number) is State.ABSENT and not self._behaviour.guesses:
                tally = Tally()
                self.fill([number], tally, copies=self._copy[number])
                with self._lock:
                    self._served.add(tally)
            if not self._claims.wait(number, WAIT_SECONDS):
                return None
        return self._shelf.handles[self._tier[number]], self._offset[number], self._size[number]

    def probe(self) -> None:
        """See how fast a tier in memory is, with bytes that are nobody's, before the clock runs."""
        memory = memoryview(bytearray(self._probe))
        for tier, size in enumerate(self._layout.bytes):
            if size >= self._probe:
                for _ in range(PROBES):
                    started = time.perf_counter()
                    self._shelf.read(tier, 0, memory)
                    self._speeds.saw_memory(self._probe, time.perf_counter() - started)
                return

    def served(self) -> Tally:
        """What answering others has cost, when nobody asks any more."""
        return self._served

    def _memory(self, length: int) -> memoryview:
        memory: bytearray = getattr(self._scratch, "memory", bytearray())
        if len(memory) < length:
            memory = self._scratch.memory = bytearray(length)
        return memoryview(memory)[:length]


def _broken(tier: str, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"A node's {tier} tier failed: {error.strerror}. Look at the file system that holds it and its logs, or leave "
        "the tier out with --tiers; then run again."
    )
