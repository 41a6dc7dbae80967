"""Interruptions are raised where the program is, and remembered: there are places that swallow what is raised in them.

Such are callbacks of weak references, hooks around a fork, and extension modules while they load: Python can only print
what is raised there (sys.unraisablehook).
"""

import signal
from types import FrameType

_seen: list[int] = []


def listen() -> None:
    """Raise KeyboardInterrupt in the main thread for SIGINT, SIGTERM and SIGHUP, from now on; nohup(1) still holds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def check() -> None:
    """Raise KeyboardInterrupt if there was one that nobody has met: before long work, and once it has begun."""
    if _seen:
        met()
        raise KeyboardInterrupt


def met() -> None:
    """It has arrived: nobody need be told again."""
    _seen.clear()


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    _seen.append(number)
    raise KeyboardInterrupt
