"""Threads that fill a node's tiers in the placement's order: beside the run, or before its first step."""

import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dlio_bench.harness.readers.placed.layout import TierLayout
from dlio_bench.harness.readers.placed.rules import fill_runs
from dlio_bench.harness.readers.placed.source_picker import SourcePicker
from dlio_bench.harness.readers.placed.tier_server import TierServer
from dlio_bench.harness.readers.session import Tally

NAP_SECONDS = 0.1  # between two checks whether tiers are still bypassed


class TierFiller:
    """Fills this rank's part of its node's tiers, with `threads` threads for each tier."""

    def __init__(self, layout: TierLayout, picker: SourcePicker, server: TierServer, rank: int, threads: int) -> None:
        self._picker, self._server, self._threads = picker, server, threads
        bounds = layout.bounds.tolist()
        self._files, self._copies = (fill_runs(layout, rank, copies=copies) for copies in (False, True))
        self._firsts = bounds[:-1]
        self._places = [last - first for first, last in pairwise(bounds)]
        self._stopped, self._going = threading.Event(), threading.Event()
        self._going.set()
        self._at_work: list[threading.Lock] = []  # of each thread, while it fills
        self._workers: list[threading.Thread] = []
        self.filled = Tally()  # the cost of what its threads have done
        self._failures: list[BaseException] = []
        self.begun = False

    def all_now(self, *, copies: bool) -> None:
        """Fill every tier, from the file system or (`copies`) from other nodes, and return when it is full."""
        self._start(copies=copies, patient=False)
        self._join()

    def begin(self) -> None:
        """Start to fill from the file system, whenever tiers are not bypassed. Copies come when they are read."""
        self._start(copies=False, patient=True)

    def pause(self) -> None:
        """Return when no thread fills, and let none begin until `go_on`."""
        self._going.clear()
        for at_work in self._at_work:
            at_work.acquire()
            at_work.release()

    def go_on(self) -> None:
        """End a pause."""
        self._going.set()

    def end(self, tally: Tally) -> None:
        """Stop filling, and add its cost."""
        self._stopped.set()
        self._going.set()
        for worker in self._workers:
            worker.join()
        self._workers = []
        tally.add(self.filled)
        if self._failures and sys.exc_info()[0] is None:  # no other error has ended the session
            raise self._failures[0]

    def _start(self, *, copies: bool, patient: bool) -> None:
        self.begun = True
        for tier, runs in enumerate(self._copies if copies else self._files):
            turn, waiting = threading.Lock(), iter(runs)
            for number in range(min(self._threads, len(runs))):
                tally, at_work = self.filled.part(), threading.Lock()
                self._at_work.append(at_work)
                worker = threading.Thread(
                    target=self._fill_tier,
                    args=(tier, waiting, turn, tally, at_work, copies, patient),
                    name=f"reader-filling-{tier}-{number}",
                    daemon=True,
                )
                self._workers.append(worker)
                worker.start()
            if not runs and not copies:
                self._picker.progress[tier] = self._places[tier]

    def _join(self) -> None:
        for worker in self._workers:
            worker.join()
        self._workers = []
        if self._failures:
            raise self._failures[0]

    def _fill_tier(
        self,
        tier: int,
        waiting: Iterator[Sequence[int]],
        turn: threading.Lock,
        tally: Tally,
        at_work: threading.Lock,
        copies: bool,
        patient: bool,
    ) -> None:
        try:
            while not self._stopped.is_set():
                while patient and self._picker.bypassed:
                    if self._stopped.wait(NAP_SECONDS):
                        return
                self._going.wait()
                with at_work:
                    if not self._going.is_set():
                        continue
                    with turn:
                        run = next(waiting, None)
                    if run is None:
                        if not copies:
                            self._picker.progress[tier] = self._places[tier]
                        return
                    self._server.fill(run, tally, copies=copies)
                self._picker.progress[tier] = max(self._picker.progress[tier], run[-1] + 1 - self._firsts[tier])
        except BaseException as failure:  # noqa: BLE001 - raised in the trainer's thread, which joins this one
            self._failures.append(failure)
