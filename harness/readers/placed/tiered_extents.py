"""What a picker delivers, behind the seam of deliveries: prepare a plan, fetch its chunks, close (see ExtentReader).

A chunk belongs to a group of neighbouring samples of one batch. While the file system is the fastest source a group is
read straight, chunk by chunk, as if there were no placement, unless some of it is in the node's memory already. Else
whoever takes its first chunk gets its samples, each from where it is best had, and there is nothing left to do for
those who take its other chunks.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.counters import Cost
from dlio_bench.harness.readers.placed.rules import groups
from dlio_bench.harness.readers.placed.source_picker import SourcePicker
from dlio_bench.harness.readers.session import SampleView, Scratch
from dlio_bench.harness.readers.threads import queued_seconds
from dlio_bench.harness.storage import chunks, extents
from dlio_bench.harness.storage.extents import ExtentReader

_UNDECIDED, _STRAIGHT, _TAKEN = 0, 1, 2
LOOK_AT = 16  # of so many reads past the supply the last is timed, which costs a tenth of reading a chunk from memory


class GroupedReads(Struct, frozen=True):
    """A plan cut into groups, and those into chunks. batches: of each chunk, ascending. inner: chunks as read straight.

    ids [n]; kept, starts: int64 [n + 1], where each sample is among all that is delivered, as it is kept and as it is
    delivered. rows [groups + 1]: the samples of a group. bases, ends [groups]: where it starts and ends in its batch.
    """

    batches: Ids
    inner: chunks.ChunkedReads
    ids: Ids
    kept: Ids
    starts: Ids
    rows: list[int]
    bases: list[int]
    ends: list[int]
    groups: list[int]  # of each chunk


class TieredExtents:
    """Samples of one session, delivered from its supply. `close` it when nobody fetches any more."""

    def __init__(
        self, sample_view: SampleView, picker: SourcePicker, straight: ExtentReader, raw: ExtentReader, sizes: Ids
    ) -> None:
        """`straight` reads samples as they are delivered, `raw` as they are kept (the same where nothing is decoded).

        `sizes` [samples]: bytes of a sample as it is kept.
        """
        self._sample_view, self._picker, self._sizes = sample_view, picker, sizes
        self._straight, self._raw = straight, raw
        self._work: GroupedReads | None = None
        self._state = bytearray()
        self._left: dict[int, list[int]] = defaultdict(list)  # batch -> samples to be read on demand, rows of the plan
        self._trusted = 0  # chunks to be read straight before it is asked again whether they should
        self._lock = threading.Lock()
        self._scratch = Scratch()

    def prepare(self, plan: Sequence[Ids]) -> GroupedReads:
        """See ExtentReader.prepare."""
        ids, within, rows, of_group = groups(
            plan, self._sample_view.sizes, extents.CHUNK_BYTES, of_one=self._sample_view.dataset.file_per_sample
        )
        parts = [ids[first:last] for first, last in pairwise(rows.tolist())]
        inner = self._straight.prepare(parts, 2 * extents.CHUNK_BYTES)  # so that most groups are one chunk
        if self._raw is not self._straight:
            self._raw.expect(ids)
        self._state = bytearray(len(parts))
        starts = np.concatenate([[0], np.cumsum(self._sample_view.sizes(ids))])
        kept = np.concatenate([[0], np.cumsum(self._sizes[ids])])
        bases = within[rows[:-1]]
        self._work = GroupedReads(
            of_group[inner.batches],
            inner.at_bases(bases),
            ids,
            kept,
            starts,
            rows.tolist(),
            bases.tolist(),
            (bases + starts[rows[1:]] - starts[rows[:-1]]).tolist(),
            inner.batches.tolist(),
        )
        return self._work

    def fetch(self, work: GroupedReads, chunks: range, out: memoryview, cost: Cost) -> None:
        """See ExtentReader.fetch."""
        first, last = work.groups[chunks.start], work.groups[chunks.stop - 1] + 1
        with self._lock:
            fresh = [group for group in range(first, last) if self._state[group] == _UNDECIDED]
            if fresh and not self._trusted and self._picker.bypassed:
                self._trusted = LOOK_AT
            for group in fresh:
                ids = work.ids[work.rows[group] : work.rows[group + 1]]
                self._state[group] = _STRAIGHT if self._trusted and not self._picker.holds(ids) else _TAKEN
            straight = self._state.count(_STRAIGHT, first, last)
            looked_at = self._trusted == 1
            self._trusted -= bool(straight and self._trusted)
        if straight == last - first:
            self._read_directly(work, chunks, out, cost, looked_at=looked_at)
            return
        for chunk in chunks if straight else ():  # others who took a part of the batch had decided otherwise
            if self._state[work.groups[chunk]] == _STRAIGHT:
                self._read_directly(work, range(chunk, chunk + 1), out, cost, looked_at=False)
        for group in fresh:
            if self._state[group] == _TAKEN:
                rows = list(range(work.rows[group], work.rows[group + 1]))
                left = self._deliver_rows(work, rows, out[work.bases[group] : work.ends[group]], cost, ahead=True)
                if left:
                    with self._lock:
                        self._left[int(work.batches[chunks.start])] += left

    def _read_directly(
        self, work: GroupedReads, chunks: range, out: memoryview, cost: Cost, *, looked_at: bool
    ) -> None:
        if not looked_at:
            self._straight.fetch(work.inner, chunks, out, cost)
            return
        before, seconds, queued = cost.bytes_requested, cost.read_seconds, queued_seconds()
        self._straight.fetch(work.inner, chunks, out, cost)
        queued = queued_seconds() - queued
        self._picker.saw_file_system(cost.bytes_requested - before, cost.read_seconds - seconds, queued)

    @property
    def incomplete(self) -> bool:
        """Whether something was left out of some batch."""
        return bool(self._left)

    def complete(self, batch: int, out: memoryview, cost: Cost) -> None:
        """Read on demand what was left out of a batch, in the thread of who needs it now."""
        work = self._work
        assert work is not None
        for row in self._left.pop(batch, []):
            group = int(np.searchsorted(work.rows, row, side="right")) - 1
            start = work.bases[group] + int(work.starts[row] - work.starts[work.rows[group]])
            end = start + int(work.starts[row + 1] - work.starts[row])
            self._deliver_rows(work, [row], out[start:end], cost, ahead=False)

    def close(self) -> None:
        """Nothing: files stay open for those who fill tiers and answer other ranks, until the session ends."""

    def _deliver_rows(
        self, work: GroupedReads, rows: Sequence[int], out: memoryview, cost: Cost, *, ahead: bool
    ) -> list[int]:
        """Deliver neighbouring rows into `out`, which holds just them. The rows left out."""
        first, last = rows[0], rows[-1] + 1
        ids = work.ids[first:last].tolist()
        kept = (work.kept[first : last + 1] - work.kept[first]).tolist()
        memory = out if self._sample_view.decode is None else self._scratch.of(kept[-1])
        left = self._picker.get(ids, kept, memory, cost, ahead=ahead)
        if self._sample_view.decode is not None:
            starts = (work.starts[first : last + 1] - work.starts[first]).tolist()
            skipped = set(left)
            for row, sample in enumerate(ids):
                if row not in skipped:
                    raw, place = memory[kept[row] : kept[row + 1]], out[starts[row] : starts[row + 1]]
                    self._straight.decode(sample, raw, place, cost)
        return [first + row for row in left]
