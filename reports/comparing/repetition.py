"""A run that repeats an earlier one: what the two results say of each other, and what differs now."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from msgspec import structs, to_builtins

from dlio_bench.reports.document.types import Draft, Repeats, Result
from dlio_bench.reports.run import sentences, tables
from dlio_bench.reports.run.facts import Facts, flatten
from dlio_bench.reports.view.formatting import NOTHING
from dlio_bench.wrapping import printable, wrap

HEAD = "  differs now  "
OUTCOMES = {  # what is measured, or has a new name in each run
    "plan": ("notes", "comparable"),
    "dataset": ("owner",),
    "environment": (
        "hosts",
        "rank_hosts",
        "startup_seconds",
        "rank_memory_bytes",
        "interfaces",
        "tier_folders",
        "launcher",
        "restarts",
    ),
}
OF_A_HOST = ("host", "room", "clock_offset_seconds")  # the same of a host


def with_earlier(draft: Draft, earlier: Sequence[Result]) -> Draft:
    """The draft with the earlier result of its reader and node count that it repeats, if there is one."""
    key = (draft.policy.alias, draft.plan.nodes)
    for before in earlier:
        if (before.policy.alias, before.plan.nodes) == key:
            return structs.replace(draft, repeats=Repeats(before.digest, differences(before, draft)))
    return draft


def differences(before: Draft, after: Draft) -> list[str]:
    """'code digest: 12ab; now 34cd', of everything that two results record beside what was measured.

    Hosts are compared in the order of their ranks, whatever their names.
    """
    old, new = _facts(before), _facts(after)
    lines = _differing(old, new)
    names = [list(dict.fromkeys(draft.environment.rank_hosts)) for draft in (before, after)]
    if names[0] != names[1]:
        lines.append(f"hosts: {', '.join(names[0])}; now {', '.join(names[1])}")
    hosts = (before.environment.hosts, after.environment.hosts)
    for pair in zip(*names, strict=False):
        parts = [
            flatten(_plain_fields(known[name], *OF_A_HOST))
            for known, name in zip(hosts, pair, strict=True)
            if name in known
        ]
        lines += _differing(*parts) if len(parts) == 2 else []
    return list(dict.fromkeys(lines))


def describe_differences(results: Sequence[Result]) -> str:
    """What differs now from the results that these repeat, at most 80 columns wide. Empty if they repeat none."""
    if not (differs := lines(results)):
        return ""
    heads = (HEAD, *[" " * len(HEAD)] * (len(differs) - 1))
    wraps = [wrap(printable(line), head) for line, head in zip(differs, heads, strict=True)]
    return "\n".join(["", *chain.from_iterable(wraps)]) + "\n"


def lines(results: Sequence[Result]) -> list[str]:
    """What differs now from the results that these repeat, a sentence each. Empty if they repeat none."""
    named = zip(tables.labels(results), results, strict=True)
    differs = {label: result.repeats.differs for label, result in named if result.repeats is not None}
    if not differs:
        return []
    return sentences.shared(list(differs), list(differs.values())) or ["nothing that results record"]


def _facts(draft: Draft) -> Facts:
    facts = {"version": draft.version, "marks": ", ".join(draft.marks) or NOTHING}
    for name in ("dataset", "policy", "plan", "compute", "environment"):
        prefix = "" if name == "environment" else f"{name} "
        facts |= flatten(_plain_fields(getattr(draft, name), *OUTCOMES.get(name, ())), prefix)
    launcher = draft.environment.launcher
    return facts | {"launcher": NOTHING if launcher is None else launcher.name}


def _differing(old: Facts, new: Facts) -> list[str]:
    return [
        f"{name}: {old.get(name, NOTHING)}; now {new.get(name, NOTHING)}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name, NOTHING) != new.get(name, NOTHING)
    ]


def _plain_fields(part: Any, *apart: str) -> dict[str, Any]:
    return {name: value for name, value in to_builtins(part).items() if name not in apart}
