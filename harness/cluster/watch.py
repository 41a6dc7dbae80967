"""What the command that launched ranks makes of their signs of life: the end of a job in which one stands still.

A rank that was stopped tells nothing any more; one that hangs in a call to dead storage tells that it does not move. To
the others, who wait for them, both look alike, so that here it is found out who is at fault.
"""

from typing import Any

from dlio_bench.errors import UsageError
from dlio_bench.units import format_seconds, parse_seconds

DEFAULT_TIMEOUT = "10min"
START_SECONDS = 60.0  # before a rank can tell anything Python has to start, from a file system that many share
_NAMED = 4  # ranks, in a message


class Watch:
    """Hears the pulses of a job's ranks, and says which of them keeps the others waiting."""

    def __init__(self, timeout: float, now: float) -> None:
        """timeout: seconds. now: here and below in seconds of one clock."""
        self._timeout, self._begun = timeout, now
        self._pulses: dict[Any, dict[str, Any]] = {}
        self._heard: dict[Any, float] = {}

    def hear(self, pulse: dict[str, Any], now: float) -> None:
        """A rank has told something."""
        who = (pulse["host"], pulse["process"])
        self._pulses[who], self._heard[who] = pulse, now

    def verdict(self, now: float) -> str | None:
        """Why the job is to be ended, as a sentence or two; None while there is hope."""
        limit = max([self._timeout, *(pulse["patience"] for pulse in self._pulses.values())])
        took = f"for {format_seconds(limit)}"
        hint = "Give slow ones more time with --timeout."
        if not self._pulses:
            limit = max(limit, START_SECONDS)
            late = now - self._begun > limit
            return f"No rank has begun {format_seconds(limit)} after the launch. {hint}" if late else None
        silent = [who for who, heard in self._heard.items() if now - heard > limit and not self._pulses[who]["mute"]]
        idle = {who: pulse["idle"] + now - self._heard[who] for who, pulse in self._pulses.items()}
        still = [who for who, seconds in idle.items() if seconds > limit and not self._pulses[who]["waiting"]]
        still = [who for who in still if who not in silent]
        if silent:
            return f"{self._named(silent)} gave no sign of life {took}: stopped, or cut off. {hint}"
        if still:
            return (
                f"{self._named(still)} stood still {took}, reading and computing nothing: storage that does not "
                f"answer looks so. {hint}"
            )
        if min(idle.values()) > limit:
            return f"{self._absent()} did not come, and the {len(idle)} ranks that did have waited {took}. {hint}"
        return None

    def _absent(self) -> str:
        numbers = {pulse["rank"] for pulse in self._pulses.values()}
        ranks = max(pulse["ranks"] for pulse in self._pulses.values())
        missing = [f"rank {number}" for number in range(ranks) if number not in numbers]
        return _listed(missing) if missing else "A rank"

    def _named(self, who: list[Any]) -> str:
        found = [self._pulses[one] for one in who]
        names = [
            f"{_rank(one['rank'])} on {one['host']} (process {one['process']})"
            for one in sorted(found, key=lambda one: (one["rank"] is None, one["rank"] or 0))
        ]
        return _listed(names)


def _listed(names: list[str]) -> str:
    found = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return found[0].upper() + found[1:]


def _rank(number: int | None) -> str:
    return "a rank" if number is None else f"rank {number}"


_allowed = parse_seconds(DEFAULT_TIMEOUT)


def allow(seconds: float) -> None:
    """How long ranks that this process launches from now on may stand still; 0: for ever."""
    global _allowed  # noqa: PLW0603 - one command, one limit
    _allowed = seconds


def allowed() -> float:
    """See `allow`."""
    return _allowed


def parse_timeout(text: str) -> float:
    """Seconds of --timeout. UsageError."""
    seconds = parse_seconds(text)
    if 0 < seconds < 1:
        raise UsageError(f"--timeout {text} is too short for ranks to tell that they live: allow 1s or more, or 0.")
    return seconds
