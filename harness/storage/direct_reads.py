"""Direct reads of a dataset's files: the calls that bring pieces of them into a batch's memory."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.counters import Cost
from dlio_bench.harness.storage import direct
from dlio_bench.harness.storage.direct import Alignment, Layout, Piece, Span
from dlio_bench.harness.storage.files import OpenFile, OpenFiles
from dlio_bench.harness.storage.stored_files import StoredFiles


class DirectReads:
    """Several threads may share one; each has aligned memory of its own."""

    def __init__(self, stored: StoredFiles, files: OpenFiles, alignment: Alignment) -> None:
        self._stored, self._files, self._alignment = stored, files, alignment
        self._bounce = direct.Bounce()

    def read(self, wanted: Sequence[Piece], out: memoryview, cost: Cost) -> None:
        """Bring pieces of files, those of a file in order of their offsets, into `out`. Errors as those of a reader."""
        alignment, bounce, read = self._alignment, self._bounce, self._stored.read
        memory = np.frombuffer(out, np.uint8)
        address = direct.address_of(memory)
        opened: OpenFile | None = None  # held, so that it stays open
        open_key = useful = rounded = 0
        for span in direct.spans(wanted, alignment):
            key, file = span.pieces[0][:2]
            if opened is None or key != open_key:
                opened, open_key = self._files.get(key, file), key
            handle = opened.handle()
            layout = direct.layout(span, alignment, memory, address, bounce)
            brought = read(handle, layout.parts, file, span.start)
            if brought < span.needed:
                brought += self._rest(handle, file, span, layout, brought)
            layout.spread(span, memory)
            useful += span.useful
            rounded += max(0, brought - span.useful)  # a sample may be wanted twice
        cost.bytes_requested += useful
        cost.bytes_rounded += rounded

    def _rest(self, handle: int, file: int, span: Span, layout: Layout, count: int) -> int:
        """The kernel stopped after `count` bytes, behind any block, and is asked for the rest: bytes read."""
        alignment, brought, needed, done = self._alignment, 0, span.needed, 0
        while done + count < needed:
            if count < alignment.block:
                raise self._stored.ended(file, span.start + done + count, span.start + needed)
            done = alignment.down(done + count)
            count = self._stored.read(handle, direct.behind(layout.parts, done), file, span.start + done)
            brought += count
        return brought
