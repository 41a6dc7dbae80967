"""What a file of spans has, for a terminal: how much, by whose clocks, what is wrong, and what took how long."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import asdict

from dlio_bench.reports.formatting import format_time, plural
from dlio_bench.reports.lines import fit
from dlio_bench.reports.timeline import Clock, Timeline
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable, wrapped

LONGEST = 25  # letters of a component


def render(timeline: Timeline, name: str) -> str:
    """A few lines about the file, and a table of its components over all ranks and trials."""
    return "\n".join(_lines(timeline, name)) + "\n"


def document(timeline: Timeline) -> dict[str, Any]:
    """The same, as JSON."""
    return {
        "spans": len(timeline),
        "ranks": timeline.ranks,
        "clocks": {host: asdict(clock) for host, clock in timeline.clocks.items()},
        "lost": {str(rank): lost for rank, lost in timeline.lost.items()},
        "problems": list(timeline.problems),
        "components": [
            {"component": name, "ranks": ranks, "spans": spans, "seconds": seconds, "bytes": size}
            for name, ranks, spans, seconds, size in _components(timeline)
        ],
    }


def clock_line(host: str, clock: Clock) -> str:
    """What is known of a host's clock; nothing of that of rank 0's host, which is the measure."""
    if clock == Clock(0.0, 0.0, 0.0, clock.apart):
        return f"clock of {host}: that of rank 0"
    drift = f", {clock.drift * 1e6:+.0f} us of it came in {format_time(clock.apart)}" if clock.apart else ""
    return (
        f"clock of {host}: {clock.ahead * 1e3:+.3f} ms +- {clock.within * 1e6:.0f} us{drift}; taken off. No headline "
        "number compares hosts"
    )


def about(timeline: Timeline, name: str) -> Iterator[str]:
    """How much was recorded, what is known of the hosts' clocks, and what is wrong: a line each."""
    ranks, trials = plural(timeline.ranks, "rank"), plural(len(np.unique(timeline.trial)), "trial")
    yield printable(name)
    yield f"  recorded  {plural(len(timeline), 'span')} of {ranks}, {trials}"
    for host, clock in timeline.clocks.items() if len(timeline.clocks) > 1 else ():
        yield from wrapped(printable(clock_line(host, clock)), "  clock     ", whole_words=True)
    for problem in timeline.problems:
        yield from wrapped(printable(problem), "  problem   ", whole_words=True)


def _lines(timeline: Timeline, name: str) -> Iterator[str]:
    yield from about(timeline, name)
    yield f"  {'component':<26}{'ranks':>7}{'spans':>10}{'seconds':>11}{'bytes':>11}"
    for component, ranks, spans, seconds, size in _components(timeline):
        volume = format_bytes(size) if size else ""
        name = fit(printable(component), LONGEST)
        yield f"  {name:<26}{ranks:>7}{spans:>10}{format_time(seconds):>11}{volume:>11}".rstrip()


def _components(timeline: Timeline) -> Iterator[tuple[str, int, int, float, int]]:
    """Of each component: its name, how many ranks and spans it has, and their seconds and bytes added up."""
    rank, seconds = timeline.rank, np.maximum(timeline.end - timeline.start, 0.0)
    for code, component in enumerate(timeline.components):
        chosen = timeline.component == code
        if chosen.any():
            ranks = len(np.unique(rank[chosen]))
            size = int(timeline.bytes[chosen].sum())
            yield component.name, ranks, int(chosen.sum()), float(seconds[chosen].sum()), size
