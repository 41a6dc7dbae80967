"""What a trainer waited for while it waited for input: its stalls, shared out to what was under way in other threads.

Rule. At each moment of a stall, every thread is at the operation that it began last of those under way. The moment goes
in equal parts to the threads that work. Operations that only wait for others (kind `wait`) take no part. An operation
that encloses recorded work of the process (a call of a Python function, see ENCLOSING) takes part only where nothing
else works. Moments in which no thread works go to NOTHING. So the parts of a stall add up to it.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

NOTHING = "nothing recorded"
WAIT = "wait"
ENCLOSING = frozenset({"tf:PyFunc"})
# Kinds that enclose others, wait for them, or belong to training: no work that a stall could be waiting for.
_NO_WORK = frozenset({WAIT, "step", "compute", "communication"})
THE_STALL = "records"  # what a trainer says of its own stall

Interval = tuple[float, float]


class Operation(Struct, frozen=True):
    """Something under way in a thread, in seconds of the clock of the stalls."""

    thread: int
    component: str
    kind: str
    start: float
    end: float


def shares(stalls: Sequence[Interval], operations: Iterable[Operation]) -> list[dict[str, float]]:
    """Seconds of each stall by component, NOTHING included. stalls: apart, in their order."""
    by_thread: dict[int, list[Operation]] = {}
    for operation in operations:
        if operation.start < operation.end:
            by_thread.setdefault(operation.thread, []).append(operation)
    changes: list[tuple[float, int, str]] = []  # moment, +1 or -1, component
    for of_thread in by_thread.values():
        for start, end, component, kind in _latest(of_thread):
            if kind not in _NO_WORK and component != THE_STALL:
                changes += [(start, 1, component), (end, -1, component)]
    cuts = [(moment, 0, "") for stall in stalls for moment in stall]
    sums: list[dict[str, float]] = [{} for _ in stalls]
    working: Counter[str] = Counter()
    at = 0
    for (moment, change, component), (following, _, _) in pairwise(sorted([*changes, *cuts])):
        if change:
            working[component] += change
        while at < len(stalls) and stalls[at][1] <= moment:
            at += 1
        if at < len(stalls) and stalls[at][0] <= moment < following:
            for name, part in _parts(working):
                sums[at][name] = sums[at].get(name, 0.0) + part * (following - moment)
    return sums


def total(sums: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of all stalls, the longest first."""
    whole: Counter[str] = Counter()
    for of_stall in sums:
        whole.update(of_stall)
    return dict(sorted(whole.items(), key=lambda entry: (-entry[1], entry[0])))


def _parts(working: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """(component, its part of a moment), given how many threads are at each."""
    busy = {name: count for name, count in working.items() if count and name not in ENCLOSING}
    busy = busy or {name: count for name, count in working.items() if count}
    if not busy:
        yield NOTHING, 1.0
    threads = sum(busy.values())
    for name, count in busy.items():
        yield name, count / threads


def _latest(operations: Sequence[Operation]) -> Iterator[tuple[float, float, str, str]]:
    """(start, end, component, kind): which operation of one thread began last, wherever one is under way."""
    begun = sorted(operations, key=lambda operation: (operation.start, -operation.end))
    moments = sorted({moment for operation in begun for moment in (operation.start, operation.end)})
    under_way: list[tuple[int, Operation]] = []  # a heap: the one that began last comes first
    at = 0
    for start, end in pairwise(moments):
        while at < len(begun) and begun[at].start <= start:
            heapq.heappush(under_way, (-at, begun[at]))
            at += 1
        while under_way and under_way[0][1].end <= start:
            heapq.heappop(under_way)
        if under_way:
            latest = under_way[0][1]
            yield start, end, latest.component, latest.kind
