"""Raises signals as exceptions, and remembers them, because some code swallows exceptions.

Callbacks of weak references, hooks around a fork, and extension modules while they load do so: Python can only print
what they raise (sys.unraisablehook). check() raises it again, so nothing is printed.
"""

import signal
import sys
from types import FrameType

_seen: list[int] = []
_print = sys.unraisablehook


class Interrupted(KeyboardInterrupt):
    """Raised for a signal. Python treats a plain KeyboardInterrupt differently if it leaves code compiled from text.

    Dataclasses and named tuples are such code. The process then dies of SIGINT at its end, although the exception was
    caught and a status returned (run_eval_code_obj in CPython's pythonrun.c compares the exact type).
    """


def listen() -> None:
    """Raise Interrupted in the main thread for SIGINT, SIGTERM and SIGHUP, from now on; nohup(1) still holds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    sys.unraisablehook = _leave_to_check


def check() -> None:
    """Raise Interrupted if a signal was swallowed. Call it before long work, and after it has begun."""
    if seen():
        met()
        raise Interrupted


def seen() -> bool:
    """Whether a signal has come that was not met yet."""
    return bool(_seen)


def met() -> None:
    """The signal has been handled: check() need not raise it again."""
    _seen.clear()


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    _seen.append(number)
    raise Interrupted


def _leave_to_check(swallowed: "sys.UnraisableHookArgs") -> None:
    if not isinstance(swallowed.exc_value, Interrupted):
        _print(swallowed)
