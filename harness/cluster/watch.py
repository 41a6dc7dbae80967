"""The launching command's view of the ranks' signs of life: it ends a job in which a rank stands still.

A rank that was stopped sends nothing; one that hangs in a call to dead storage reports that it makes no progress. The
ranks that wait for them cannot tell the two apart, so the launching command finds out which rank is at fault.
"""

import platform
from typing import Any

from dlio_bench.errors import UsageError
from dlio_bench.harness.machine.waits import awaited_file
from dlio_bench.units import format_seconds, parse_seconds

DEFAULT_TIMEOUT = "10min"
START_SECONDS = 60.0  # before its first sign of life a rank starts Python, from a file system that many share
_NAMED = 4  # ranks, in a message
_PULSES_APART = 0.25  # of the time limit: two pulses of a rank come within half of that


class Watch:
    """Collects the pulses of a job's ranks, and names the ranks that keep the others waiting."""

    def __init__(self, timeout: float, now: float) -> None:
        """timeout: seconds. now: here and below in seconds of one clock."""
        self._timeout, self._begun = timeout, now
        self._pulses: dict[Any, dict[str, Any]] = {}
        self._heard: dict[Any, float] = {}

    def record_pulse(self, pulse: dict[str, Any], now: float) -> None:
        """A pulse of a rank."""
        sender = (pulse["host"], pulse["process"])
        self._pulses[sender], self._heard[sender] = pulse, now

    def hosts(self) -> dict[int, str]:
        """The host of each rank that has told its number."""
        return {pulse["rank"]: pulse["host"] for pulse in self._pulses.values() if pulse["rank"] is not None}

    def processes(self) -> list[int]:
        """The ranks of this host that have given a sign of life."""
        return [process for host, process in self._heard if host == platform.node()]

    def verdict(self, now: float) -> str | None:
        """Why the job is to be ended, as a sentence or two; None while there is hope."""
        limit = max([self._timeout, *(pulse["patience"] for pulse in self._pulses.values())])
        took = f"for {format_seconds(limit)}"
        hint = "Give slow ones more time with --timeout."
        if not self._pulses:
            limit = max(limit, START_SECONDS)
            late = now - self._begun > limit
            return f"No rank has begun {format_seconds(limit)} after the launch. {hint}" if late else None
        quiet = {rank: now - heard for rank, heard in self._heard.items() if not self._pulses[rank]["mute"]}
        # the ranks of a host that is lost fell silent together, but for the time between two pulses
        together = limit - _PULSES_APART * self._timeout
        silent = [rank for rank, seconds in quiet.items() if seconds > together and max(quiet.values()) > limit]
        idle = {rank: pulse["idle"] + now - self._heard[rank] for rank, pulse in self._pulses.items()}
        still = [rank for rank, seconds in idle.items() if seconds > limit and not self._pulses[rank]["waiting"]]
        # a rank that stands still tells so; of one that has begun to be silent nothing is known yet
        silence_begun = {rank for rank, seconds in quiet.items() if seconds > limit / 2}
        still = [rank for rank in still if rank not in silence_begun]
        if silent:
            why = self._waits_for(silent) or "stopped, or cut off"
            return f"{self._name_ranks(silent)} gave no sign of life {took}: {why}. {hint}"
        if still:
            why = self._waits_for(still) or "storage may not answer"
            return f"{self._name_ranks(still)} stood still {took}, reading and computing nothing: {why}. {hint}"
        if len(self._pulses) < self._ranks():  # one that does not see the job's folder tells so itself, later
            limit = max(limit, START_SECONDS)
            took = f"for {format_seconds(limit)}"
        if min(idle.values()) > limit and not silence_begun:
            return (
                f"{self._missing_ranks()} did not come, and the {len(idle)} ranks that did have waited {took}. {hint}"
            )
        return None

    def _waits_for(self, senders: list[Any]) -> str | None:
        """What the first of these ranks is known to wait for. Of its own host this process asks the kernel."""
        for host, process in senders:
            at = self._pulses[host, process].get("at")
            if at or (host == platform.node() and (at := awaited_file(process))):
                return f"it waits for {at}"
        return None

    def _missing_ranks(self) -> str:
        numbers = {pulse["rank"] for pulse in self._pulses.values()}
        missing = [f"rank {number}" for number in range(self._ranks()) if number not in numbers]
        return _join_names(missing) if missing else "A rank"

    def _ranks(self) -> int:
        return max(int(pulse["ranks"]) for pulse in self._pulses.values())

    def _name_ranks(self, senders: list[Any]) -> str:
        pulses = [self._pulses[sender] for sender in senders]
        names = [
            f"{_rank(pulse['rank'])} on {pulse['host']} (process {pulse['process']})"
            for pulse in sorted(pulses, key=lambda pulse: (pulse["rank"] is None, pulse["rank"] or 0))
        ]
        return _join_names(names)


def _join_names(names: list[str]) -> str:
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return listed[0].upper() + listed[1:]


def _rank(number: int | None) -> str:
    return "a rank" if number is None else f"rank {number}"


_allowed = parse_seconds(DEFAULT_TIMEOUT)


def allow(seconds: float) -> None:
    """How long ranks that this process launches from now on may stand still; 0: for ever."""
    global _allowed  # noqa: PLW0603 - one command, one limit
    _allowed = seconds


def timeout() -> float:
    """See `allow`."""
    return _allowed


def parse_timeout(text: str) -> float:
    """Seconds of --timeout. UsageError."""
    seconds = parse_seconds(text)
    if 0 < seconds < 1:
        raise UsageError(f"--timeout {text} is too short for ranks to tell that they live: allow 1s or more, or 0.")
    return seconds
