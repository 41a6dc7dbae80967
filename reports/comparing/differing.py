"""What two results differ in beside their numbers: the work, which must be the same, and what may explain a change."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from dlio_bench.reports.comparing import comparable
from dlio_bench.reports.document.environment import Environment, Host
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.document.types import Result
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable

NOTHING = "none"


class Differing(Struct, frozen=True):
    """A thing that two results differ in, and what it is in each, for people."""

    what: str
    before: str
    after: str


def unequal(before: Measured, after: Measured) -> list[str]:
    """Every reason why the two did not do the same work, or why one of them may not be compared; empty if they did."""
    sides = [before, after]
    reasons = list(
        dict.fromkeys(printable(each.fault) for each in sides if each.fault is not None and not each.altered)
    )
    for quantity in {**before.work, **after.work}:
        values = [each.work.get(quantity) for each in sides]
        if values[0] != values[1]:
            told = [_format_value(comparable.readable(value)) for value in values]
            reasons.append(f"{quantity} ({told[0]} and {told[1]})")
    return reasons


def differing(before: Measured, after: Measured) -> list[Differing]:
    """What else differs: the reader and its settings, marks, versions, code, launcher, machines and file systems."""
    shown = {
        what: [side.described.get(what, NOTHING) for side in (before, after)]
        for what in {**before.described, **after.described}
    }
    return [Differing(what, *values) for what, values in shown.items() if values[0] != values[1]]


def describe_setup(result: Result) -> Iterator[tuple[str, str]]:
    """What may differ between two runs of equal work, for people."""
    policy, plan, environment = result.policy, result.plan, result.environment
    yield "reader", policy.alias or policy.name
    for name in ("order", "placement", "delivery", "decode", "check_crc"):
        yield name, _format_value(getattr(policy, name))
    streams = {} if plan.streams is None else asdict(plan.streams)
    # a stream's producers and queue are among the options of its reader too
    yield from ((f"option {name}", str(value)) for name, value in sorted(policy.options.items()) if name not in streams)
    yield from ((f"stream {name}", _format_value(value)) for name, value in streams.items())
    yield "class", result.class_
    yield "marks", _format_value(sorted(result.marks))
    yield "seed", str(plan.seed)
    yield "memory per node", _size(plan.node_memory_bytes)
    yield "dataset folder", result.dataset.folder
    yield "version", result.version
    yield from _job(environment)
    for what, describe in HOST.items():
        yield what, _format_value(sorted({describe(host) for host in environment.hosts.values()}))
    for kind in ("packages", "variables", "stripe"):
        yield from _host_lines(
            kind.removesuffix("s"), [getattr(host, kind) or {} for host in environment.hosts.values()]
        )


def _job(environment: Environment) -> Iterator[tuple[str, str]]:
    yield "code", _format_value(environment.code_digest)
    yield "MPI", _format_value(environment.mpi)
    yield "launcher", _format_value(environment.launcher and environment.launcher.name)
    yield "hosts", _format_value(sorted(environment.hosts))
    yield "emulated PFS", _format_value(environment.emulated_pfs and environment.emulated_pfs.says)


def _host_lines(kind: str, tables: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """One line for each name in tables of several hosts."""
    by_name: dict[str, set[str]] = {}
    for table in tables:
        for name, value in table.items():
            by_name.setdefault(name, set()).add(value)
    yield from ((f"{kind} {name}", _format_value(sorted(values))) for name, values in sorted(by_name.items()))


def _size(value: float | None) -> str:
    return NOTHING if value is None else format_bytes(value)


HOST: dict[str, Callable[[Host], str]] = {
    "CPU": lambda host: _format_value(host.cpu),
    "cores": lambda host: _format_value(host.cores),
    "CPU quota": lambda host: _format_value(host.cpu_quota),
    "CPU governor": lambda host: _format_value(host.governor),
    "memory": lambda host: _size(host.memory_bytes),
    "memory limit": lambda host: _size(host.memory_limit_bytes),
    "kernel": lambda host: _format_value(host.kernel),
    "Python": lambda host: _format_value(host.python),
    "MPI library": lambda host: _format_value(host.libmpi),
    "file system": lambda host: _format_value(
        host.mount and (host.mount.type, host.mount.source, "at", host.mount.point)
    ),
    "mount options": lambda host: _format_value(host.mount and sorted(host.mount.options)),
}


def _format_value(value: Any) -> str:
    """A value for people; several in a row, a digest by its first twelve digits."""
    if isinstance(value, list | tuple):
        return ", ".join(_format_value(part) for part in value if part is not None) or NOTHING
    text = NOTHING if value is None else str(value)
    return printable(text[:19] if text.startswith("sha256:") else text)
