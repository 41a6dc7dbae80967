"""A thread that does one task after another, and the handle by which the trainer waits for each."""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from dlio_bench.harness.cluster.life import life


class Pending:
    """A task. `started` and `ended`: in seconds of time.perf_counter."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._over = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None
        self.started = self.ended = 0.0

    def run(self) -> None:
        """Do it, in whichever thread this is."""
        assert self._work is not None
        self.started = time.perf_counter()
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001 - raised where the outcome is asked for
            self._error = error
        self._work = None  # what it holds can go
        self.ended = time.perf_counter()
        self._over.set()

    def wait(self, seconds: float) -> Any:
        """Its outcome, or the error that ended it. TimeoutError where it is not over in time."""
        with life.waits(patience=seconds):
            if not self._over.wait(seconds):
                raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result


class Background:
    """The thread. It is a daemon: what hangs in a library for ever must not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Pending | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], Any]) -> Pending:
        """Do `work` after all that was begun before."""
        pending = Pending(work)
        self._queue.put(pending)
        return pending

    def close(self, seconds: float) -> None:
        """End the thread when it has done everything; it is left alone where that takes longer."""
        self._queue.put(None)
        self._thread.join(seconds)

    def do(self, work: Callable[[], Any], seconds: float) -> Any:
        """Begin it and wait for its outcome, see Pending.wait."""
        return self.begin(work).wait(seconds)

    def _serve(self) -> None:
        while (pending := self._queue.get()) is not None:
            pending.run()
            del pending  # its waiter alone holds the outcome
