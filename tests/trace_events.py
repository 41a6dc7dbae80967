"""The Trace Event Format as a schema: what its document asks of the events that we write ("Trace Event Format", by
N. Duca and D. Sinclair, sections "JSON Object Format" and "Event Descriptions"). Anything else is refused.
"""

from collections import defaultdict
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Number = Annotated[float, Meta(ge=0)]  # microseconds
Text = Annotated[str, Meta(min_length=1)]


class Event(Struct, tag_field="ph", forbid_unknown_fields=True, kw_only=True):
    """What all events have."""

    name: Text
    pid: int
    tid: int


class Complete(Event, tag="X", kw_only=True):
    """Complete event."""

    cat: Text
    ts: Number
    dur: Number
    args: dict[str, str | int]


class Instant(Event, tag="i", kw_only=True):
    """Instant event; s: its scope is the whole trace, a process or a thread."""

    cat: Text
    ts: Number
    s: Literal["g", "p", "t"]
    args: dict[str, str | float]


class Counter(Event, tag="C", kw_only=True):
    """Counter event: a value of each series."""

    ts: Number
    args: Annotated[dict[str, Number], Meta(min_length=1)]


class Metadata(Event, tag="M", kw_only=True):
    """Metadata event: the name or the place of a process or a thread."""

    name: Literal["process_name", "process_sort_index", "thread_name", "thread_sort_index"]
    args: dict[Literal["name", "sort_index"], str | int]


class Trace(Struct, forbid_unknown_fields=True, kw_only=True):
    """A file."""

    traceEvents: list[Complete | Instant | Counter | Metadata]  # noqa: N815 - as the format writes it
    displayTimeUnit: Literal["ms", "ns"]  # noqa: N815 - as the format writes it
    otherData: dict[str, Any]  # noqa: N815 - as the format writes it


def checked(content: bytes) -> Trace:
    """A trace that follows the schema; its names are unique, and the complete events of each thread nest."""
    trace = msgspec.json.decode(content, type=Trace)
    named = [(event.pid, event.tid, event.name) for event in trace.traceEvents if isinstance(event, Metadata)]
    assert len(named) == len(set(named))
    processes = {event.pid for event in trace.traceEvents if event.name == "process_name"}
    assert {event.pid for event in trace.traceEvents} == processes
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in trace.traceEvents:
        if isinstance(event, Complete):
            assert (event.pid, event.tid, "thread_name") in named
            begin, length = round(event.ts * 1000), round(event.dur * 1000)  # ns
            assert abs(begin - event.ts * 1000) < 0.01  # written to the nanosecond
            threads[event.pid, event.tid].append((begin, begin + length))
    for events in threads.values():
        assert_nested(events)
    return trace


def assert_nested(intervals: list[tuple[float, float]]) -> None:
    """Two of them do not overlap, unless one lies inside the other. Not as the product sees to it."""
    open_until: list[float] = []
    for begin, end in sorted(intervals, key=lambda interval: (interval[0], -interval[1])):
        open_until = [until for until in open_until if until > begin]
        assert all(end <= until for until in open_until), (begin, end, open_until)
        open_until.append(end)
