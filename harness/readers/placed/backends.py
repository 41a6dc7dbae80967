"""The sources of raw samples: this node's tiers, other ranks, the parallel file system; each counts its cost."""

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from dlio_bench import recorder
from dlio_bench.batches import Ids
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.harness.cluster.peers import Peers
from dlio_bench.harness.readers.placed.claims import Claims
from dlio_bench.harness.readers.placed.layout import TierLayout
from dlio_bench.harness.readers.placed.tiers import RAM, Speeds
from dlio_bench.harness.readers.threads import queued_seconds
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.harness.storage.tier_files import TierFiles

PROBES = 8  # reads of a tier, to measure how fast memory is


TIER_READ, TIER_WRITE, REMOTE_READ = (CODE[name] for name in ("tier read", "tier write", "remote read"))


class Locations(Struct, frozen=True):
    """A node's tiers for one of its ranks: the places of samples, their bytes, their states, the names of the tiers."""

    layout: TierLayout
    tier_files: TierFiles
    claims: Claims
    tiers: Sequence[str]
    rank: int


class Backends:
    """Gets samples, as they are kept, into parts of a buffer: sample ids[i], row i of a request, into
    out[starts[i]:starts[i + 1]]. Safe for several threads.
    """

    def __init__(self, locations: Locations, raw: ExtentReader, speeds: Speeds, stored: Ids) -> None:
        """`raw` reads samples undecoded, as they are kept. `stored` [samples]: bytes of a sample in its file."""
        self.layout, self.tier_files, self.claims = locations.layout, locations.tier_files, locations.claims
        self.tiers, self.rank = locations.tiers, locations.rank
        self.peers: Peers | None = None
        self._raw, self._speeds, self._stored = raw, speeds, stored

    def place(self, kept: int) -> tuple[int, int]:
        """Tier and offset at which the node keeps its sample number `kept`."""
        return int(self.layout.tier[kept]), int(self.layout.offset[kept])

    def from_files(
        self, ids: Sequence[int], starts: Sequence[int], out: memoryview, rows: Sequence[int], cost: Cost
    ) -> None:
        """Read rows (ascending) from the file system; rows that are neighbours in `out` in one read."""
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
        """Read a sample that this node has as number `kept`. EnvironmentFailure when its tier fails."""
        tier, offset = self.place(kept)
        started = time.perf_counter()
        self.tier_files.read(tier, offset, out)
        _record_read(TIER_READ, started, len(out), cost)
        if self.tiers[tier] == RAM:
            cost.bytes_ram += len(out)
        else:
            cost.bytes_local += len(out)
        cost.bytes_spared += int(self._stored[sample])
        self._raw.verify(sample, out)

    def fetch_rows(
        self, rank: int, ids: Sequence[int], starts: Sequence[int], out: memoryview, rows: Sequence[int], cost: Cost
    ) -> list[int]:
        """Get rows from another rank. Returns the rows that it did not have."""
        assert self.peers is not None
        outs = [out[starts[row] : starts[row + 1]] for row in rows]
        started = time.perf_counter()
        answered = self.peers.fetch(rank, [ids[row] for row in rows], outs)
        delivered_bytes = sum(len(content) for delivered, content in zip(answered, outs, strict=True) if delivered)
        _record_read(REMOTE_READ, started, delivered_bytes, cost)
        missed = []
        for row, delivered, content in zip(rows, answered, outs, strict=True):
            if delivered:
                cost.bytes_remote += len(content)
                self._raw.verify(ids[row], content)
                cost.bytes_spared += int(self._stored[ids[row]])
            else:
                missed.append(row)
        cost.remote_misses += len(missed)
        return missed

    def store(self, kept: int, content: memoryview) -> None:
        """Write neighbouring samples, from number `kept` on, into their tier. EnvironmentFailure when it fails."""
        tier, offset = self.place(kept)
        started = time.perf_counter()
        self.tier_files.write(tier, offset, content)
        if track := recorder.current_track():
            track.add(TIER_WRITE, started, time.perf_counter(), len(content), offset)

    def holders(self, ids: Sequence[int], rows: Sequence[int]) -> dict[int, list[int]]:
        """Rows by the rank of another node that holds their sample; NOWHERE: no other node does."""
        ranks: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            ranks[int(self.layout.holder[ids[row]])].append(row)
        return ranks

    def probe(self, size: int) -> None:
        """Measure how fast a tier in memory is, with `size` bytes that belong to no sample, before the run.

        In time of this thread on a core: on a busy machine every one of the reads may have waited for one.
        """
        memory = memoryview(bytearray(size))
        for tier, kept in enumerate(self.layout.bytes):
            if kept >= size:
                for _ in range(PROBES):
                    started = time.thread_time()
                    self.tier_files.read(tier, 0, memory)
                    self._speeds.saw_memory(size, time.thread_time() - started)
                return


def _record_read(component: int, started: float, size: int, cost: Cost) -> None:
    ended = time.perf_counter()
    cost.read_seconds += ended - started
    if track := recorder.current_track():
        track.add(component, started, ended, size)
