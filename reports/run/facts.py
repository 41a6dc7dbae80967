"""Facts about results as text, folded: what all have in common is said once, what differs stands side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dlio_bench.reports.document.environment import Environment
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run import sentences, tables
from dlio_bench.reports.view.formatting import NOTHING
from dlio_bench.units import format_bytes

Facts = dict[str, str]
OF_EACH = ("host", "clock offset seconds")  # facts that no two hosts share


class Folded(Struct, frozen=True):
    """Facts of several owners (hosts, results): name -> value where all agree, name -> {owner: value} elsewhere."""

    owners: tuple[str, ...]
    common: Facts
    differing: dict[str, Facts]


def fold(facts: Mapping[str, Facts]) -> Folded:
    """Fold {owner: {name: value}}; a fact that an owner lacks reads '-'."""
    names = dict.fromkeys(name for part in facts.values() for name in part)
    values = {name: {owner: part.get(name, NOTHING) for owner, part in facts.items()} for name in names}
    alike = {name for name, by_owner in values.items() if len(set(by_owner.values())) == 1}
    common = {name: next(iter(by_owner.values())) for name, by_owner in values.items() if name in alike}
    return Folded(tuple(facts), common, {name: values[name] for name in names if name not in alike})


def plans(results: Sequence[Result]) -> dict[str, Folded]:
    """Plan, dataset, job and step time of the results, folded over results."""
    labels = tables.labels(results)
    parts: dict[str, list[Facts]] = {
        "Plan": [flatten(_plain_fields(result.plan, "notes")) for result in results],
        "Dataset": [flatten(_plain_fields(result.dataset)) for result in results],
        "Job": [_job(result.environment) for result in results],
        "Step time": [{"step": sentences.step_time(result)} | _sources(result) for result in results],
    }
    return {part: fold(dict(zip(labels, facts, strict=True))) for part, facts in parts.items()}


def environment(results: Sequence[Result]) -> Folded:
    """The hosts of all results, folded; a host that changed between two results is named once for each state."""
    hosts: dict[str, Facts] = {}
    for label, result in zip(tables.labels(results), results, strict=True):
        for host, state in result.environment.hosts.items():
            facts = flatten(_plain_fields(state))
            if hosts.get(host, facts) != facts:
                hosts[f"{host} ({label})"] = facts
            else:
                hosts[host] = facts
    return fold(hosts)


def hosts_differ(environment: Folded) -> bool:
    """Whether hosts differ in more than hosts always do: names, clocks, and the room that each has for tiers just then.

    Rooms and clocks that matter are among the notes of a result.
    """
    return any(name not in OF_EACH and not name.startswith("room ") for name in environment.differing)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Facts:
    """Nested facts as text by a spelled-out name: {'mount': {'type': 'ext4'}} -> {'mount type': 'ext4'}."""
    facts: Facts = {}
    for name, value in values.items():
        title = f"{prefix}{name}".replace("_", " ")
        facts |= flatten(value, f"{title} ") if isinstance(value, Mapping) else {title: _format_fact(name, value)}
    return facts


def _job(environment: Environment) -> Facts:
    """Facts of the job rather than of a host; left out are measurements and long lists, shown elsewhere."""
    facts = flatten(_plain_fields(environment, "hosts", "rank_hosts", "startup_seconds", "launcher"))
    return facts | ({"launcher": environment.launcher.name} if environment.launcher else {})


def _plain_fields(part: msgspec.Struct, *apart: str) -> dict[str, Any]:
    """A part of a result in JSON's own values, without some of its fields."""
    return {name: value for name, value in msgspec.to_builtins(part).items() if name not in apart}


def _sources(result: Result) -> Facts:
    compute = result.compute
    return {"kind": compute.kind or NOTHING, "source": compute.source or NOTHING}


def _format_fact(name: str, value: Any) -> str:
    """One fact as text, in units where its name tells them."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if "bytes" in name and isinstance(value, int | float):
        return f"{format_bytes(value)} ({value:,.0f} bytes)"
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value) or NOTHING
    return str(value)
