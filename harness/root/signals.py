"""Raises signals as exceptions, and remembers them, because some code swallows exceptions.

Callbacks of weak references, hooks around a fork, and extension modules while they load do so: Python can only print
what they raise (sys.unraisablehook). check() raises it again, so nothing is printed.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
LEAST_SECONDS = 0.01  # a timer of 0 never rings
SOON_SECONDS = 10.0  # after a signal: its cause may send others while the ranks end
_seen: list[int] = []
_met: list[int] = []
_last = 0.0  # when the newest of _seen came
_held = 0  # blocks of `held` that the main thread is in
_print = sys.unraisablehook


class Interrupted(KeyboardInterrupt):
    """Raised for a signal. Python treats a plain KeyboardInterrupt differently if it leaves code compiled from text.

    Dataclasses and named tuples are such code. The process then dies of SIGINT at its end, although the exception was
    caught and a status returned (run_eval_code_obj in CPython's pythonrun.c compares the exact type).
    """


def listen() -> None:
    """Raise Interrupted in the main thread for SIGINT, SIGTERM, SIGHUP and SIGALRM, from now on; nohup(1) still holds.

    Schedulers send SIGTERM several times. Soon after the first, and once that was met, only SIGINT interrupts again: it
    comes from a user.
    """
    _met.clear()
    for number in _ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    sys.unraisablehook = _leave_to_check


def check() -> None:
    """Raise Interrupted if a signal was swallowed. Call it before long work, and after it has begun."""
    if is_pending():
        mark_handled()
        raise Interrupted


@contextmanager
def hold() -> Iterator[None]:
    """In this block signals are remembered alone, for check(): what it makes is not lost before somebody has it."""
    global _held  # noqa: PLW0603 - as signals are the process's
    if threading.current_thread() is not threading.main_thread():  # in which signals are raised
        yield
        return
    _held += 1
    try:
        yield
    finally:
        _held -= 1


def end() -> None:
    """The process has its exit status: signals no longer change it, as Python's end would let them."""
    global _held  # noqa: PLW0603 - as signals are the process's
    _held += 1
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def is_pending() -> bool:
    """Whether a signal has come that was not met yet."""
    return bool(_seen)


def mark_handled() -> None:
    """The signal has been handled: check() need not raise it again."""
    _met.extend(_seen)
    _seen.clear()


def interrupt_reason(number: int | None = None) -> str:
    """What interrupted this process: 'Interrupted by Ctrl-C', by the end of its time, or by another signal's name.

    number: of the signal, if it was not met yet.
    """
    known = {signal.SIGINT: "Ctrl-C", signal.SIGALRM: "the end of this job's time"}
    came = last_signal() if number is None else signal.Signals(number)
    return f"Interrupted by {known.get(came, came.name)}"


def last_signal() -> signal.Signals:
    """The signal that interrupted this process; SIGINT if none did."""
    return signal.Signals(next(iter([*_met, *_seen]), signal.SIGINT))


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs inside so many seconds from now, by SIGALRM. None: never."""
    if seconds is None:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, max(seconds, LEAST_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    global _last  # noqa: PLW0603 - as signals are the process's
    soon = _seen and time.monotonic() - _last < SOON_SECONDS
    if (_met or soon) and number != signal.SIGINT:
        return
    _last = time.monotonic()
    _seen.append(number)
    if not _held:
        raise Interrupted


def _leave_to_check(swallowed: "sys.UnraisableHookArgs") -> None:
    if not isinstance(swallowed.exc_value, Interrupted):
        _print(swallowed)


T = TypeVar("T")


def interruptible(source: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What the iterator `source()` yields, taken from it by a thread of its own.

    Python raises a signal's exception in the main thread, between any two instructions. Inside the locks of an
    executor's futures, which are Python code, it leaves a lock taken: the executor then waits for ever when it is shut
    down. So the main thread only waits for items here, and an interrupt does that wait no harm. Whoever stops early
    makes `source` end too: it is closed at its next item. Raises what `source` raises.
    """
    from queue import SimpleQueue  # late: --help needs it not

    items: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def run_work() -> None:
        try:
            for item in source():
                items.put((item,))
                if stopped.is_set():
                    break
            items.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the items are wanted
            items.put(error)

    threading.Thread(target=run_work, daemon=True).start()
    try:
        while (entry := items.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]
    finally:
        stopped.set()
