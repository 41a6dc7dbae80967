"""The machines of a result in a few lines: hosts, their network, clocks that are apart, and what was begun again."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from dlio_bench.reports.document.environment import Environment, Host
from dlio_bench.reports.view.formatting import NOTHING, plural, size
from dlio_bench.units import format_seconds

NAMED = 4  # hosts at most in a line
CLOCKS_APART = 0.1  # seconds; below that a clock is as good as the others


def machines(environment: Environment) -> Iterator[str]:
    """One line for each thing that there is to tell; the first is about the hosts."""
    yield abbreviate(list(environment.hosts))
    if environment.interfaces:
        served = [f"{place} of {host}" for host, place in environment.interfaces.items()]
        yield f"samples between ranks over {abbreviate(served)}"
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
        yield f"clocks: {abbreviate(ways)}"
    if environment.restarts:
        yield f"the scheduler had begun the job again {plural(environment.restarts, 'time')}"
    if environment.launcher is not None and environment.launcher.retries:
        yield f"{environment.launcher.name} was started again {plural(environment.launcher.retries, 'time')}"


def describe_machines(hosts: Mapping[str, Host]) -> dict[str, str]:
    """What the machines are, by the name of each fact; where hosts differ each value has their names before it."""
    facts: dict[str, Callable[[Host], str]] = {
        "processors": lambda host: f"{host.cpu or NOTHING}, {plural(host.cores, 'core') if host.cores else NOTHING}",
        "memory": lambda host: size(host.memory_bytes),
        "memory of the job": lambda host: size(host.memory_limit_bytes),
        "network": lambda host: ", ".join(host.network) or NOTHING,
        "drives": lambda host: "; ".join(host.drives) or NOTHING,
        "kernel": lambda host: host.kernel or NOTHING,
        "client": lambda host: host.client or (f"{host.mount.type} of the kernel" if host.mount else NOTHING),
    }
    told = {name: _join_equal({host: tell(state) for host, state in hosts.items()}) for name, tell in facts.items()}
    return {name: text for name, text in told.items() if text != NOTHING}


def _join_equal(values: Mapping[str, str]) -> str:
    """'2 cores', or 'node1, node2: 2 cores; node3: 4 cores'."""
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    return (
        next(iter(hosts)) if len(hosts) == 1 else "; ".join(f"{abbreviate(of)}: {value}" for value, of in hosts.items())
    )


def abbreviate(names: Sequence[str]) -> str:
    """'a, b, c, d and 12 more (16 in all)'."""
    told = ", ".join(names[:NAMED])
    return told if len(names) <= NAMED else f"{told} and {len(names) - NAMED} more ({len(names)} in all)"
