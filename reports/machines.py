"""The machines of a result in a few lines: hosts, their network, clocks that are apart, and what was begun again."""

from collections.abc import Iterator, Sequence

from dlio_bench.reports.environment import Environment
from dlio_bench.reports.formatting import plural
from dlio_bench.units import format_seconds

NAMED = 4  # hosts at most in a line
CLOCKS_APART = 0.1  # seconds; below that a clock is as good as the others


def machines(environment: Environment) -> Iterator[str]:
    """One line for each thing that there is to tell; the first is about the hosts."""
    yield _few(list(environment.hosts))
    if environment.interfaces:
        served = [f"{place} of {host}" for host, place in environment.interfaces.items()]
        yield f"samples between ranks over {_few(served)}"
    apart = {
        name: host.clock_offset_seconds
        for name, host in environment.hosts.items()
        if host.clock_offset_seconds is not None and abs(host.clock_offset_seconds) > CLOCKS_APART
    }
    if apart:
        worst = sorted(apart, key=lambda name: -abs(apart[name]))
        ways = [
            f"{name} {format_seconds(abs(apart[name]))} {'ahead' if apart[name] > 0 else 'behind'}" for name in worst
        ]
        yield f"clocks: {_few(ways)}"
    if environment.restarts:
        yield f"the scheduler had begun the job again {plural(environment.restarts, 'time')}"
    if environment.launcher is not None and environment.launcher.retries:
        yield f"{environment.launcher.name} was started again {plural(environment.launcher.retries, 'time')}"


def _few(names: Sequence[str]) -> str:
    """'a, b, c, d and 12 more (16 in all)'."""
    told = ", ".join(names[:NAMED])
    return told if len(names) <= NAMED else f"{told} and {len(names) - NAMED} more ({len(names)} in all)"
