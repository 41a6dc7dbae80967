"""The predictions as a table."""

import textwrap
from typing import Any

from dlio_bench.harness.simulator.predict import PUBLISHED
from dlio_bench.units import format_bytes

WIDTH = 80


def render(document: dict[str, Any]) -> str:
    """The JSON document of `simulate` as text, fastest first; what does not apply comes last, with its reason."""
    case, system = document["case"], document["system"]
    tiers = ", ".join(f"{name} {format_bytes(size)}" for name, size in system["tiers"].items())
    lines = _wrapped(
        f"{case['title']}: {case['samples']} samples, {format_bytes(case['bytes'])}; {case['nodes']} nodes of "
        f"{case['batch']} samples a step, {case['epochs']} epochs, seed {case['seed']}"
    )
    lines += _wrapped(f"System {system['name']}: {tiers}")
    if system["estimated"]:
        lines += _wrapped(f"estimated: {', '.join(system['estimated'])}: no source gives these numbers of the system")
    if case["simulated_nodes"] < case["nodes"]:
        lines += _wrapped(
            f"{case['simulated_nodes']} of {case['nodes']} nodes are simulated: the lower bound is exact, the other "
            "rows are estimates, and bytes are scaled up."
        )
    lines += ["", f"{'policy':<21}{'seconds':>12}{'over bound':>12}{'stall':>12}{'from the PFS':>14}"]
    done = [row for row in document["rows"] if row["seconds"] is not None]
    for row in sorted(done, key=lambda row: float(row["seconds"])):
        mark = " *" if row["pfs_in_steps"] else ""
        name, pfs = row["policy"] + mark, format_bytes(row["bytes"].get("pfs", 0))
        lines.append(
            f"{name:<21}{row['seconds']:>12.2f}{row['over_bound']:>12.2%}{row['stall_seconds']:>12.2f}{pfs:>14}"
        )
    for row in document["rows"]:
        if row["seconds"] is None:
            lines += _wrapped(f"{row['policy']:<21}does not apply: {row['reason']}", indent=21)
    counted = (
        "as the published simulator counted them"
        if document["pfs_clients"] == PUBLISHED
        else f"all {case['nodes']} nodes, always"
    )
    if any(row["pfs_in_steps"] for row in done):
        lines += ["", *_wrapped(
            f"* reads the PFS during steps, so it depends on how many nodes are taken to read it at once: {counted} "
            f"(--pfs-clients {document['pfs_clients']})."
        )]  # fmt: skip
    return "\n".join(lines)


def _wrapped(words: str, indent: int = 2) -> list[str]:
    return textwrap.wrap(words, WIDTH, subsequent_indent=" " * indent)
