"""Interruptions are raised where the program is, and remembered: there are places that swallow what is raised in them.

Such are callbacks of weak references, hooks around a fork, and extension modules while they load: Python can only print
what is raised there (sys.unraisablehook). Nobody need read that: check() raises it again.
"""

import signal
import sys
from types import FrameType

_seen: list[int] = []
_print = sys.unraisablehook


class Interrupted(KeyboardInterrupt):
    """Raised for a signal. A type of its own, because Python remembers a plain one that leaves code made from text.

    Dataclasses and named tuples are made so. At its end the process then dies of SIGINT, although somebody caught it
    and returned a status (run_eval_code_obj in CPython's pythonrun.c compares the type itself).
    """


def listen() -> None:
    """Raise Interrupted in the main thread for SIGINT, SIGTERM and SIGHUP, from now on; nohup(1) still holds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    sys.unraisablehook = _leave_to_check


def check() -> None:
    """Raise Interrupted if there was one that nobody has met: before long work, and once it has begun."""
    if _seen:
        met()
        raise Interrupted


def met() -> None:
    """It has arrived: nobody need be told again."""
    _seen.clear()


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    _seen.append(number)
    raise Interrupted


def _leave_to_check(swallowed: "sys.UnraisableHookArgs") -> None:
    if not isinstance(swallowed.exc_value, Interrupted):
        _print(swallowed)
