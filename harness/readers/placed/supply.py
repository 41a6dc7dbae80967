"""Samples from the best source that has them: this node's tiers, another node, or the parallel file system.

A sample that this node is to keep is fetched once: whoever of its keeper's threads needs it first (one that fills the
staging buffer or a tier, or answers another rank) claims it, and puts it into its tier; others wait for that one.

Nobody can wait in a circle. Who holds a claim on a sample that comes from the file system waits for nothing but the
file system. Who holds a claim on a copy waits for its holder, whose claim is of the first kind. And nobody waits for
another's claim before its own are settled.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlio_bench.batches import Ids
from dlio_bench.counters import Cost
from dlio_bench.harness.plan.placement.rows import Behaviour
from dlio_bench.harness.readers.placed.claims import WAIT_SECONDS, State
from dlio_bench.harness.readers.placed.sources import Sources
from dlio_bench.harness.readers.placed.speeds import REMOTE, Speeds
from dlio_bench.harness.readers.placed.tiers import RAM

# A holder is taken to have a sample when this node's own filling of the same tier is so many samples further: nodes
# fill their tiers at about the same pace (SC'21, section 5; REMOTE_PREFETCH_OFFSET_DIFF of its runtime).
AHEAD_OF_HOLDER = 20


@dataclass
class _Rows:
    """Rows of a request by where they come from. claimed, copies: row -> number of the sample among those kept."""

    here: list[int] = field(default_factory=list)  # a tier of this node
    busy: list[int] = field(default_factory=list)  # the same, when another thread has brought it
    files: list[int] = field(default_factory=list)
    claimed: dict[int, int] = field(default_factory=dict)  # files, to be kept
    copies: dict[int, int] = field(default_factory=dict)  # another node, to be kept
    ask: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # rank -> rows
    left: list[int] = field(default_factory=list)


class Supply:
    """The sources of one rank for one session. `get` may be called from several threads."""

    def __init__(self, sources: Sources, behaviour: Behaviour, speeds: Speeds) -> None:
        self._sources, self._behaviour, self._speeds = sources, behaviour, speeds
        self._layout, self._claims = sources.layout, sources.claims
        self._elsewhere = bool((self._layout.holder >= 0).any())  # other nodes keep samples
        self._nowhere = not self._elsewhere and not len(self._layout.ids) and behaviour.ahead_pfs  # nobody keeps any
        self._memory = sources.tiers.index(RAM) if RAM in sources.tiers else -1  # which of the tiers it is
        self._keeps_in_memory = bool((self._layout.tier == self._memory).any())
        self.progress = [0] * len(sources.tiers)  # places of each tier that the filling threads have passed

    @property
    def bypassed(self) -> bool:
        """Whether the file system is the only source, or the fastest, so that keeping samples would be a waste."""
        return self._nowhere or self._prefer_files(REMOTE if self._elsewhere else self._sources.tiers[0])

    def holds(self, ids: Ids) -> bool:
        """Whether some of these samples are in this node's memory, or on their way to it: they were read for it, and
        would be read a second time.
        """
        if not self._keeps_in_memory:
            return False
        kept = self._layout.number[ids]
        kept = kept[kept >= 0]
        kept = kept[self._layout.tier[kept] == self._memory]
        return bool(len(kept) and self._claims.begun(kept).any())

    def saw_file_system(self, size: int, seconds: float, queued: float) -> None:
        """Somebody has read `size` bytes past this supply (see Speeds)."""
        self._speeds.saw_file_system(size, seconds, queued)

    def get(self, ids: Sequence[int], starts: Sequence[int], out: memoryview, cost: Cost, *, ahead: bool) -> list[int]:
        """Fill out[starts[i]:starts[i + 1]] with sample ids[i]. Returns the rows left out.

        Those are samples that no node keeps, where the policy's threads may not read the file system `ahead`.
        """
        plan = self._sort(ids, ahead=ahead)
        number = self._layout.number
        try:
            self._sources.from_files(ids, starts, out, sorted([*plan.files, *plan.claimed]), cost)
            self._keep(plan.claimed, starts, out)
            self._copies(ids, starts, out, plan.copies, cost)
        finally:  # whatever failed, nobody waits for a claim of ours
            for kept in [*plan.claimed.values(), *plan.copies.values()]:
                self._claims.settle(kept, present=False)
        for rank, rows in plan.ask.items():
            self._sources.from_files(ids, starts, out, self._sources.ask(rank, ids, starts, out, rows, cost), cost)
        for row in plan.busy:
            if self._claims.wait(int(number[ids[row]]), WAIT_SECONDS):
                plan.here.append(row)
            else:
                self._sources.from_files(ids, starts, out, [row], cost)
        for row in plan.here:
            self._sources.from_tier(ids[row], int(number[ids[row]]), out[starts[row] : starts[row + 1]], cost)
        return plan.left

    def _sort(self, ids: Sequence[int], *, ahead: bool) -> "_Rows":
        """Choose a source for each sample; claim those that are to be kept, and are not there."""
        found = _Rows()
        number, holder = self._layout.number, self._layout.holder
        keep = not self.bypassed
        for row, sample in enumerate(ids):
            kept = int(number[sample])
            if kept >= 0 and not keep and self._claims.look(kept) is State.ABSENT:
                found.files.append(row)
            elif kept >= 0:
                self._sort_kept(row, sample, kept, found)
            elif self._may_ask(sample):
                found.ask[int(holder[sample])].append(row)
            elif ahead and not self._behaviour.ahead_pfs and holder[sample] < 0:
                found.left.append(row)
            else:
                found.files.append(row)
        return found

    def _sort_kept(self, row: int, sample: int, kept: int, found: "_Rows") -> None:
        state = self._claims.take(kept)
        if state is State.PRESENT:
            tier = int(self._layout.tier[kept])  # no file system beats memory
            slow = tier != self._memory and self._prefer_files(self._sources.tiers[tier])
            (found.files if slow else found.here).append(row)
        elif state is State.BUSY:
            found.busy.append(row)
        elif state is State.CLAIMED:
            copied = self._layout.copy[kept] and self._sources.peers is not None and self._layout.holder[sample] >= 0
            (found.copies if copied else found.claimed)[row] = kept
        elif self._sources.peers is not None:  # its keeper is asked, and brings it if it has not begun
            found.ask[int(self._layout.keeper[sample])].append(row)
        else:
            found.files.append(row)

    def _may_ask(self, sample: int) -> bool:
        """Whether another node is to be asked for a sample that this one does not keep."""
        if self._sources.peers is None or self._layout.holder[sample] < 0:
            return False
        if self._prefer_files(REMOTE):
            return False
        if not self._behaviour.guesses:
            return True
        tier = int(self._layout.holder_tier[sample])
        first, last = int(self._layout.bounds[tier]), int(self._layout.bounds[tier + 1])
        # as published: the tier does not exist here, or is filled here, or far enough
        filled = self.progress[tier]
        return filled >= last - first or filled > int(self._layout.holder_place[sample]) + AHEAD_OF_HOLDER

    def _prefer_files(self, source: str) -> bool:
        """Whether the file system is read although `source` has a sample; some policies never do."""
        if self._behaviour.waits or not self._behaviour.ahead_pfs:
            return False
        return self._speeds.file_system_beats(source)

    def _keep(self, claimed: dict[int, int], starts: Sequence[int], out: memoryview) -> None:
        """Put claimed samples, which are in `out`, into their tiers; those are claims no more."""
        for row in list(claimed):
            kept = claimed[row]
            self._sources.store(kept, out[starts[row] : starts[row + 1]])
            del claimed[row]
            self._claims.settle(kept, present=True)

    def _copies(
        self, ids: Sequence[int], starts: Sequence[int], out: memoryview, copies: dict[int, int], cost: Cost
    ) -> None:
        """Get samples that this node keeps as copies from their holders, and keep them."""
        for rank, rows in self._sources.holders(ids, list(copies)).items():
            self._sources.from_files(ids, starts, out, self._sources.ask(rank, ids, starts, out, rows, cost), cost)
        self._keep(copies, starts, out)
