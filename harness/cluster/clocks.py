"""How far the clocks of a job's hosts are apart. No number compares times of two hosts; their logs do.

All ranks read their clocks before and after some barriers. Nobody leaves a barrier before everybody has come, so a rank
that comes at e by its clock and leaves at x is ahead of rank 0, which comes at e0 and leaves at x0, by at least e - x0
and by at most x - e0 (the bounds of Cristian, "Probabilistic clock synchronization", 1989, with a barrier as the round
trip). The tightest of all barriers count.
"""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.environment import host_name

BARRIERS = 6  # the first sets up what the others use
LOOKS = 3  # at both clocks of a host: a process that loses its processor between them knows less
Bounds = tuple[float, float]  # at least, at most
Meetings = tuple[Sequence[float], Sequence[float]]  # came, left


def offsets(comm: Comm) -> list[float]:
    """Seconds by which each rank's wall clock is ahead of rank 0's, at least (negative: behind). All ranks call it."""
    everybody = comm.allgather(_meet_repeatedly(comm, time.time))
    return [round(clock_offset(everybody[0], there), 6) for there in everybody]


def _meet_repeatedly(comm: Comm, clock: Callable[[], float]) -> Meetings:
    """When this rank came to each of some barriers, and when it left it."""
    came, left = [], []
    for _ in range(BARRIERS):
        came.append(clock())
        comm.barrier()
        left.append(clock())
    return came, left


def clock_offset(first: Meetings, other: Meetings) -> float:
    """Seconds by which the other's clock is ahead: of all values that the bounds allow, the one nearest to zero.

    first, other: when rank 0 and the other came to each barrier, and when they left it, each by its own clock.
    """
    least, most = _bounds(first, other)
    return max(least, 0.0) + min(most, 0.0)


def _bounds(first: Meetings, other: Meetings) -> Bounds:
    least = max(came - left for came, left in zip(other[0], first[1], strict=True))
    return least, min(left - came for left, came in zip(other[1], first[0], strict=True))


class ClockOffset(Struct, frozen=True):
    """By how many seconds a clock is ahead of another: `seconds`, give or take `within`."""

    seconds: float
    within: float


def interpolate(before: ClockOffset, after: ClockOffset) -> ClockOffset:
    """What holds from one estimate to another: their middle, give or take what either may miss and half the drift."""
    middle, drift = (before.seconds + after.seconds) / 2, abs(after.seconds - before.seconds)
    return ClockOffset(middle, max(before.within, after.within) + drift / 2)


def monotonic_offsets(comm: Comm) -> list[ClockOffset]:
    """By rank, how far time.perf_counter() is ahead of rank 0's; nothing on its host. All ranks call it."""
    everybody = comm.allgather((host_name(), _meet_repeatedly(comm, time.perf_counter)))
    host, first = everybody[0]
    offsets = []
    for there, other in everybody:
        least, most = _bounds(first, other)
        offsets.append(ClockOffset(0.0, 0.0) if there == host else ClockOffset((least + most) / 2, (most - least) / 2))
    return offsets


def wall_ahead() -> Bounds:
    """Seconds by which this host's wall clock is ahead of its monotonic clock."""
    looks = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(LOOKS)]
    return max(wall - after for _, wall, after in looks), min(wall - before for before, wall, _ in looks)


def drift(before: Bounds, after: Bounds) -> float:
    """Seconds that wall_ahead() has changed by: of all values that the bounds allow, the one nearest to zero."""
    return max(after[0] - before[1], 0.0) + min(after[1] - before[0], 0.0)
