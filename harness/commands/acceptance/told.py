"""What a campaign will do, before it does it: each part, how much data and about how long. Pure functions."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.commands.acceptance.datasets import Memory, Source
from dlio_bench.harness.commands.acceptance.outlook import Foreseen
from dlio_bench.harness.commands.acceptance.plan import Plan
from dlio_bench.reports.acceptance import Place, mounted
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes, format_seconds
from dlio_bench.wrapping import wrapped


def document(
    plan: Plan, digest: str, memory: Memory, places: Sequence[Place], free: int | None, foreseen: Sequence[Foreseen]
) -> dict[str, Any]:
    """The outlook as JSON: sizes in bytes, times in seconds."""
    left = [entry for entry in foreseen if entry.reason is not None]
    return {
        "system": plan.system.name,
        "plan_digest": digest,
        "memory_per_node": memory.node,
        "memory_declared": memory.declared,
        "places": [to_json(place) for place in places],
        "hosts": _hosts(),
        "free_bytes": free,
        "missing_bytes": sum(entry.missing_bytes for entry in left),
        "seconds": sum(entry.seconds for entry in left),
        "parts": [
            {
                "kind": entry.part.kind,
                "name": entry.part.name,
                "title": entry.part.title,
                "finished": entry.reason is None,
                "reason": entry.reason,
                "seconds": entry.seconds,
                "missing_bytes": entry.missing_bytes,
                "needed_bytes": 0 if entry.part.source is None else entry.part.source.needed,
                "training_bytes": 0 if entry.part.source is None else entry.part.source.bytes,
                "command": ["dlio-bench", *entry.part.words],
            }
            for entry in foreseen
        ],
    }


def lines(
    plan: Plan,
    memory: Memory,
    sources: Sequence[Source],
    places: Sequence[Place],
    foreseen: Sequence[Foreseen],
    out: Path,
    free: int | None,
) -> Iterator[str]:
    """The outlook as lines of at most 80 columns, long paths excepted."""
    yield f"acceptance of {_printable(plan.system.name)}"
    of = "as the plan says" if memory.declared else "as this machine has"
    shared = "" if memory.declared or memory.real_nodes else ", which virtual nodes share"
    yield from wrapped(f"{format_bytes(memory.node)} a node, {of}{shared}", _head("memory"))
    rule = f"at least {plan.dataset.times_memory:g} times the memory of all hosts"
    if plan.dataset.steps:
        rule += f", and {plan.dataset.steps} steps an epoch at the largest scale"
    yield from wrapped(rule, _head("rule"))
    for source in sources:
        short = ""
        if source.bytes < source.needed:
            short = f"; only {format_bytes(source.bytes)} are published, so the caches must be seen to be empty"
        there = "given" if source.is_given else "there" if not source.missing_bytes() else "to be made"
        text = f"{source.name}: asked {format_bytes(source.needed)}, {format_bytes(source.bytes)} {there}{short}"
        yield from wrapped(text, _head("data"))
    made = {str(source.folder.parent) for source in sources if not source.is_given}
    for place in places:
        room = f" ({format_bytes(free)} free)" if place.folder in made and free is not None else ""
        yield from wrapped(f"{_printable(place.folder)}{room}", _head("in"), whole_words=True)
        yield from wrapped(_printable(mounted(place.mount)), _head("  on"), whole_words=True)
    yield from wrapped(_hosts(), _head("hosts"))
    trials = f"{plural(plan.trials, 'trial')} and {plan.warmup_trials} warm-up of at least {plan.min_seconds:g} s each"
    yield from wrapped(f"{trials}, cache {plan.cache}: dropped, and looked at, before each", _head("runs"))
    yield ""
    for number, entry in enumerate(foreseen, start=1):
        state = "finished" if entry.reason is None else f"about {format_seconds(entry.seconds)}"
        if entry.missing_bytes:
            state += f", {format_bytes(entry.missing_bytes)}"
        yield from wrapped(f"{entry.part.title}: {state}", f"  {number:>3}  ")
    left = [entry for entry in foreseen if entry.reason is not None]
    yield f"  {len(foreseen) + 1:>3}  judgement, page, digests"
    yield ""
    seconds, missing = sum(entry.seconds for entry in left), sum(entry.missing_bytes for entry in left)
    told = f"{plural(len(left), 'part')} of {len(foreseen)} to do: about {format_seconds(seconds)}" if left else (
        "every part is finished: only the judgement is made again"
    )  # fmt: skip
    yield from wrapped(f"{told}{f', {format_bytes(missing)} of data to write' if missing else ''}", "  ")
    yield from wrapped(f"into {out}", "  ", whole_words=True)


def _hosts() -> str:
    given = allocation.find(os.environ)
    return host_name() if given is None else f"{plural(given.nodes, 'node')} of {given}, as {host_name()} sees them"


def _head(name: str) -> str:
    return f"  {name:<8}"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
