"""Work on executors that a signal may interrupt at any moment."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def interruptible(source: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What the iterator `source()` yields, taken from it by a thread of its own.

    Python raises a signal's exception in the main thread, between any two instructions. Inside the locks of an
    executor's futures, which are Python code, it leaves a lock taken: the executor then waits for ever when it is shut
    down. So the main thread only waits for items here, and an interrupt does that wait no harm. Whoever stops early
    makes `source` end too: it is closed at its next item. Raises what `source` raises.
    """
    items: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def run() -> None:
        try:
            for item in source():
                items.put((item,))
                if stopped.is_set():
                    break
            items.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the items are wanted
            items.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        while (entry := items.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]
    finally:
        stopped.set()
