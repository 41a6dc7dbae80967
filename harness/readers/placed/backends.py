"""Where raw samples come from: this node's tiers, other ranks, the parallel file system; each with what it costs."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlio_bench.batches import Ids
from dlio_bench.counters import Cost
from dlio_bench.harness.cluster.peers import Peers
from dlio_bench.harness.readers.placed.claims import Claims
from dlio_bench.harness.readers.placed.layout import Layout
from dlio_bench.harness.readers.placed.speeds import Speeds
from dlio_bench.harness.readers.placed.tiers import RAM
from dlio_bench.harness.readers.threads import queued_seconds
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.harness.storage.tier_files import TierFiles

PROBES = 8  # reads of a tier, to see how fast memory is


@dataclass(frozen=True)
class Locations:
    """A node's tiers as one of its ranks has them: where samples lie, their bytes, their states, the tiers' names."""

    layout: Layout
    tier_files: TierFiles
    claims: Claims
    tiers: Sequence[str]
    rank: int


class Backends:
    """Gets samples as they are kept into parts of a buffer: row i of a request, sample ids[i], into
    out[starts[i]:starts[i + 1]]. May be used by several threads.
    """

    def __init__(self, locations: Locations, raw: ExtentReader, speeds: Speeds, stored: Ids) -> None:
        """`raw` reads samples as they are kept, undecoded. `stored` [samples]: bytes of a sample in its file."""
        self.layout, self.tier_files, self.claims = locations.layout, locations.tier_files, locations.claims
        self.tiers, self.rank = locations.tiers, locations.rank
        self.peers: Peers | None = None
        self._raw, self._speeds, self._stored = raw, speeds, stored

    def place(self, kept: int) -> tuple[int, int]:
        """Where the node keeps its sample number `kept`: tier and offset."""
        return int(self.layout.tier[kept]), int(self.layout.offset[kept])

    def from_files(
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
        before, queued = cost.read_seconds, queued_seconds()
        self._raw.read(ids, out, cost)
        self._speeds.saw_file_system(len(out), cost.read_seconds - before, queued_seconds() - queued)

    def from_tier(self, sample: int, kept: int, out: memoryview, cost: Cost) -> None:
        """Read a sample that this node keeps, and has, as number `kept`. EnvironmentFailure when its tier fails."""
        tier, offset = self.place(kept)
        started = time.perf_counter()
        self.tier_files.read(tier, offset, out)
        cost.read_seconds += time.perf_counter() - started
        if self.tiers[tier] == RAM:
            cost.bytes_ram += len(out)
        else:
            cost.bytes_local += len(out)
        cost.bytes_spared += int(self._stored[sample])
        self._raw.verify(sample, out)

    def ask(
        self, rank: int, ids: Sequence[int], starts: Sequence[int], out: memoryview, rows: Sequence[int], cost: Cost
    ) -> list[int]:
        """Get rows from another rank; those that it did not have."""
        assert self.peers is not None
        outs = [out[starts[row] : starts[row + 1]] for row in rows]
        started = time.perf_counter()
        answered = self.peers.fetch(rank, [ids[row] for row in rows], outs)
        cost.read_seconds += time.perf_counter() - started
        received = 0
        missed = []
        for row, delivered, content in zip(rows, answered, outs, strict=True):
            if delivered:
                received += len(content)
                self._raw.verify(ids[row], content)
                cost.bytes_spared += int(self._stored[ids[row]])
            else:
                missed.append(row)
        cost.bytes_remote += received
        cost.remote_misses += len(missed)
        return missed

    def store(self, kept: int, content: memoryview) -> None:
        """Put samples into their tier from number `kept` on, neighbours there. EnvironmentFailure when it fails."""
        tier, offset = self.place(kept)
        self.tier_files.write(tier, offset, content)

    def holders(self, ids: Sequence[int], rows: Sequence[int]) -> dict[int, list[int]]:
        """Rows by the rank of another node that holds their sample; NOWHERE for those that no other node does."""
        ranks: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            ranks[int(self.layout.holder[ids[row]])].append(row)
        return ranks

    def probe(self, size: int) -> None:
        """See how fast a tier in memory is, with `size` bytes that are nobody's, before the clock runs."""
        memory = memoryview(bytearray(size))
        for tier, kept in enumerate(self.layout.bytes):
            if kept >= size:
                for _ in range(PROBES):
                    started = time.perf_counter()
                    self.tier_files.read(tier, 0, memory)
                    self._speeds.saw_memory(size, time.perf_counter() - started)
                return
