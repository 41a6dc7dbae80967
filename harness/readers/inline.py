"""A producer inside the trainer's process: a thread that reads the plan and puts batches into a bounded queue.

In-line producers need no ranks of their own. No bytes leave the process, and ADIOS2 has no part in it: both ends of one
of its network streams in one process wait for each other for ever (2.12.1, steps of megabytes).
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from dlio_bench.batches import Batch, Block
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Planned, Reader, Tally, touch_buffer


class Inline:
    """Hands over the batches of `reader` through the slots of a queue, copied by the producer's thread."""

    def __init__(self, reader: Reader, resources: Resources) -> None:
        self.sample_view, self.processes = reader.sample_view, reader.processes
        self._reader = reader
        self._slots = [touch_buffer(resources.batch_bytes) for _ in range(resources.inline_queue)]

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        return self._reader.options | {"producers": 1, "queue": len(self._slots)}

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.requested_bytes."""
        return self._reader.requested_bytes(plan)

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        free: SimpleQueue[int | None] = SimpleQueue()  # None: end
        ready: SimpleQueue[int | Exception] = SimpleQueue()
        for slot in reversed(range(len(self._slots))):
            free.put(slot)

        def publish(batches: Iterator[Batch]) -> None:
            try:
                for planned, batch in zip(plan, batches, strict=True):
                    slot = free.get()
                    if slot is None:
                        return
                    [block] = batch.blocks
                    self._slots[slot][: planned.bytes] = block.data
                    ready.put(slot)
            except Exception as error:  # noqa: BLE001 - the trainer raises it
                ready.put(error)

        def batches() -> Iterator[Batch]:
            producer.start()
            for planned in plan:
                slot = ready.get()
                if isinstance(slot, Exception):
                    raise slot
                yield Batch(planned.ids, (Block(self._slots[slot][: planned.bytes], planned.starts),))
                free.put(slot)

        with self._reader.session(plan, tally) as read:
            producer = threading.Thread(target=publish, args=(read,), name="producer", daemon=True)
            try:
                yield batches()
            finally:
                free.put(None)
                if producer.ident is not None:
                    producer.join()
