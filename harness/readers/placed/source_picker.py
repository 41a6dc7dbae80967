"""Samples from the best source that has them: this node's tiers, another node, or the parallel file system.

A sample that this node is to keep is fetched once: whoever of its keeper's threads needs it first (one that fills the
staging buffer or a tier, or answers another rank) claims it, and puts it into its tier; others wait for that one.

Nobody can wait in a circle. Who holds a claim on a sample that comes from the file system waits for nothing but the
file system. Who holds a claim on a copy waits for its holder, whose claim is of the first kind. And nobody waits for
another's claim before its own are settled.
"""

from collections import defaultdict
from collections.abc import Sequence

from dlio_bench.batches import Ids
from dlio_bench.counters import Cost
from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.readers.placed.backends import Backends
from dlio_bench.harness.readers.placed.claims import WAIT_SECONDS, SampleState
from dlio_bench.harness.readers.placed.rules import Origin, bypasses_tiers, current_outlook, origin, rival
from dlio_bench.harness.readers.placed.tiers import RAM, Speeds


class SourcePicker:
    """The sources of one rank for one session. `get` may be called from several threads."""

    def __init__(self, backends: Backends, behaviour: Behaviour, speeds: Speeds) -> None:
        self._backends, self._behaviour, self._speeds = backends, behaviour, speeds
        self._layout, self._claims = backends.layout, backends.claims
        self._rival = rival(self._layout, backends.tiers)
        self._memory = backends.tiers.index(RAM) if RAM in backends.tiers else -1  # which of the tiers it is
        self._keeps_in_memory = bool((self._layout.tier == self._memory).any())
        self.progress = [0] * len(backends.tiers)  # places of each tier that the filling threads have passed

    @property
    def bypassed(self) -> bool:
        """See rules.bypasses_tiers."""
        return bypasses_tiers(self._behaviour, self._rival, self._speeds.file_system_beats)

    def holds(self, ids: Ids) -> bool:
        """Whether some of these samples are in this node's memory, or on their way to it: they were read for it, and
        would be read a second time.
        """
        if not self._keeps_in_memory:
            return False
        kept = self._layout.number[ids]
        kept = kept[kept >= 0]
        kept = kept[self._layout.tier[kept] == self._memory]
        return bool(len(kept) and self._claims.are_begun(kept).any())

    def saw_file_system(self, size: int, seconds: float, queued: float) -> None:
        """Somebody has read `size` bytes past this supply (see Speeds)."""
        self._speeds.saw_file_system(size, seconds, queued)

    def get(self, ids: Sequence[int], starts: Sequence[int], out: memoryview, cost: Cost, *, ahead: bool) -> list[int]:
        """Fill out[starts[i]:starts[i + 1]] with sample ids[i]. Returns the rows left out.

        Those are samples that no node keeps, where the policy's threads may not read the file system `ahead`.
        """
        origins = self._sort(ids, ahead=ahead)
        number, holder, keeper = self._layout.number, self._layout.holder, self._layout.keeper
        claimed = {row: int(number[ids[row]]) for row in origins[Origin.CLAIMED]}
        copies = {row: int(number[ids[row]]) for row in origins[Origin.COPY]}
        asked: dict[int, list[int]] = defaultdict(list)  # rank -> rows
        for whom, of in ((holder, Origin.HOLDER), (keeper, Origin.KEEPER)):
            for row in origins[of]:
                asked[int(whom[ids[row]])].append(row)
        try:
            self._backends.from_files(ids, starts, out, sorted([*origins[Origin.FILES], *claimed]), cost)
            self._keep(claimed, starts, out)
            self._copies(ids, starts, out, copies, cost)
        finally:  # whatever failed, nobody waits for a claim of ours
            for kept in [*claimed.values(), *copies.values()]:
                self._claims.settle(kept, present=False)
        for rank, rows in asked.items():
            self._backends.from_files(
                ids, starts, out, self._backends.fetch_rows(rank, ids, starts, out, rows, cost), cost
            )
        here = origins[Origin.TIER]
        for row in origins[Origin.COMING]:
            if self._claims.wait(int(number[ids[row]]), WAIT_SECONDS):
                here.append(row)
            else:
                self._backends.from_files(ids, starts, out, [row], cost)
        for row in here:
            self._backends.from_tier(ids[row], int(number[ids[row]]), out[starts[row] : starts[row + 1]], cost)
        return origins[Origin.LATER]

    def _sort(self, ids: Sequence[int], *, ahead: bool) -> dict[Origin, list[int]]:
        """The rows of each origin; those that are to be kept, and are not there, are claimed."""
        beats, alone = self._speeds.file_system_beats, self._backends.peers is None
        now = current_outlook(self._behaviour, self._backends.tiers, self._rival, beats, alone=alone, ahead=ahead)
        rows: dict[Origin, list[int]] = defaultdict(list)
        for row, sample in enumerate(ids):
            kept, state = int(self._layout.number[sample]), None
            if kept >= 0:
                absent = now.bypassed and self._claims.state_of(kept) is SampleState.ABSENT
                state = SampleState.ABSENT if absent else self._claims.take(kept)
            rows[origin(self._layout, self._behaviour, now, sample, state, self.progress)].append(row)
        return rows

    def _keep(self, claimed: dict[int, int], starts: Sequence[int], out: memoryview) -> None:
        """Put claimed samples, which are in `out`, into their tiers; those are claims no more."""
        for row in list(claimed):
            kept = claimed[row]
            self._backends.store(kept, out[starts[row] : starts[row + 1]])
            del claimed[row]
            self._claims.settle(kept, present=True)

    def _copies(
        self, ids: Sequence[int], starts: Sequence[int], out: memoryview, copies: dict[int, int], cost: Cost
    ) -> None:
        """Get samples that this node keeps as copies from their holders, and keep them."""
        for rank, rows in self._backends.holders(ids, list(copies)).items():
            self._backends.from_files(
                ids, starts, out, self._backends.fetch_rows(rank, ids, starts, out, rows, cost), cost
            )
        self._keep(copies, starts, out)
