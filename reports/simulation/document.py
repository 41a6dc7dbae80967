"""What `dlio-bench simulate` predicted, one case or a grid of them: the document, and what all of its outputs say."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlio_bench.errors import DataError
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import convert, load_json, require_schema, to_json
from dlio_bench.reports.simulation.types import GRID, Axis, Case, Cell, Row, Simulation
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

SCHEMA = "dlio-bench/simulation/1"
SINGLE = "simulation"
LOWER_BOUND = "lower-bound"
NODES = "nodes"
NAME = "simulation.json"
FIX = "Name a file written by dlio-bench simulate --out"


class Map(Struct, frozen=True):
    """One heat map: `cells[y][x]`. Across it the first axis; down it the second, or the policies where there is one."""

    title: str
    across: str  # what the axis is, with its unit
    x: tuple[str, ...]
    down: str
    y: tuple[str, ...]
    cells: tuple[tuple[Row, ...], ...]
    named: bool = False  # each cell is of another policy, and says of which


def complete(draft: Mapping[str, Any]) -> Simulation:
    """The document of a draft that holds to the schema. ValueError when it does not."""
    return convert(json.loads(json.dumps(draft, allow_nan=False)), Simulation)


def validate(document: Any, name: str = "the simulation document") -> Simulation:
    """The document, when it follows the schema. DataError, saying where it does not; `name` is for the message."""
    require_schema(document, [SCHEMA], name, FIX)
    try:
        return convert(document, Simulation)
    except ValueError as error:
        raise DataError(f"'{name}' does not follow {SCHEMA}: {error}. Simulate again.") from error


def save(document: Simulation, path: Path) -> None:
    """Write the document as JSON, whole or not at all. EnvironmentFailure."""
    write_whole(path, (json.dumps(to_json(document), indent=1, allow_nan=False) + "\n").encode())


def load(path: Path) -> Simulation:
    """The document in a file. UsageError when there is none, EnvironmentFailure, DataError as `validate`."""
    return validate(load_json(path, FIX), str(path))


def value_text(axis: str, value: int) -> str:
    """'8' for nodes, '10 GB' for a tier."""
    return str(value) if axis == NODES else format_bytes(value)


def place_text(at: Mapping[str, int]) -> str:
    """'nodes 8, ram 10 GB'."""
    return ", ".join(f"{axis} {value_text(axis, value)}" for axis, value in at.items())


def axis_title(axis: str) -> str:
    """What an axis is, for its title: 'nodes', 'ram of a node'."""
    return NODES if axis == NODES else f"{axis} of a node"


def source_title(name: str) -> str:
    """A tier's name, and the two sources beyond a node in words."""
    return {"remote": "other nodes", "pfs": "PFS", "ram": "RAM"}.get(name, name)


def ratio(row: Row) -> float | None:
    """Time over the lower bound: 1 means no stall. None where the policy does not apply."""
    return None if row.over_bound is None else 1 + row.over_bound


def ratio_text(value: float) -> str:
    """'1.003×' near the bound, '4.24×' and '12.1×' away from it."""
    return f"{value:.{3 if value < 1.0995 else 2 if value < 9.995 else 1}f}×"


def mark(row: Row) -> str:
    """'*' where the time depends on how the readers of the PFS are counted, in steps or while tiers are filled."""
    return "*" if row.seconds is not None and row.bytes.get("pfs") else ""


def has_published(document: Simulation) -> bool:
    """Whether rows say what the published way to count gives."""
    return any(row.over_bound_as_published is not None for row in document.rows)


def published_text(row: Row) -> str:
    """'0.27%': the distance to the bound as the published simulator counts; empty where it has no such policy."""
    return "" if row.over_bound_as_published is None else f"{row.over_bound_as_published:.2%}"


def seconds_text(seconds: float) -> str:
    """'3,837 s', '38.40 s', '0.07000 s': to four digits, always in seconds, so that cells compare."""
    return f"{seconds:,.0f} s" if seconds >= 999.95 else f"{seconds:#.4g} s"


def policies(document: Simulation) -> list[str]:
    """The policies in the order of the rows, each once."""
    return list(dict.fromkeys(row.policy for row in document.rows))


def maps(document: Simulation) -> list[Map]:
    """The heat maps of a grid. With one axis it is a single one, policies down; else one of the fastest policy in each
    cell, and one for each policy; with three axes these for each value of the third. The lower bound has no map: it is
    1 everywhere.
    """
    first, *others = document.axes
    table = {(row.policy, tuple(row.grid_cell.values())): row for row in document.rows}
    names = [name for name in policies(document) if name != LOWER_BOUND] or [LOWER_BOUND]
    across, x = axis_title(first.name), tuple(value_text(first.name, value) for value in first.values)
    if not others:
        cells = tuple(tuple(table[name, (value,)] for value in first.values) for name in names)
        return [Map("All policies", across, x, "", tuple(names), cells)]
    second, *rest = others
    down, y = axis_title(second.name), tuple(value_text(second.name, value) for value in second.values)
    chosen = [("Fastest policy", names), *((name, [name]) for name in names)]
    return [
        Map(
            title=title + suffix,
            across=across,
            x=x,
            down=down,
            y=y,
            cells=tuple(
                tuple(_fastest([table[name, (value, below, *place)] for name in names_shown]) for value in first.values)
                for below in second.values
            ),
            named=len(names_shown) > 1,
        )
        for title, names_shown in (chosen if len(names) > 1 else chosen[1:])
        for place, suffix in _third(rest)
    ]


def bounds(document: Simulation) -> str:
    """'Lower bound, compute alone: 3,829 s.'; of a grid over nodes, for each number of them."""
    nodes = {tuple(cell.at.values()): cell.nodes for cell in document.cells}
    bound_seconds: dict[int, float] = {}
    for row in document.rows:
        over = ratio(row)
        if over is not None:
            count = nodes[tuple(row.grid_cell.values())] if nodes else document.case.nodes or 0
            bound_seconds.setdefault(count, row.elapsed_seconds / over)
    several = len(bound_seconds) > 1
    texts = [
        seconds_text(seconds) + (f" on {plural(n, 'node')}" if several else "") for n, seconds in bound_seconds.items()
    ]
    return f"Lower bound, compute alone: {', '.join(texts) or 'not asked for'}."


def inapplicable(document: Simulation) -> list[str]:
    """A sentence for each policy that does not apply somewhere: where, and why it does not at the first such place."""
    sentences = []
    for name in policies(document):
        rows = [row for row in document.rows if row.policy == name]
        failing = [row for row in rows if row.seconds is None]
        if not failing:
            continue
        where = ""
        if document.kind == GRID:
            cells = "any cell" if len(failing) == len(rows) else f"{len(failing)} of {len(rows)} cells"
            where = f" in {cells}; at {place_text(failing[0].grid_cell)}"
        sentences.append(f"{name} does not apply{where}: {failing[0].reason}")
    return sentences


def subject(document: Simulation) -> str:
    """The job in a sentence: '150000 samples, 150 GB; 4 nodes of 25 samples a step, 10 epochs, seed 1'."""
    case = document.case
    nodes = "nodes" if case.nodes is None else plural(case.nodes, "node")
    return (
        f"{case.samples} samples, {format_bytes(case.bytes)}; {nodes} of {plural(case.batch, 'sample')} a "
        f"step, {plural(case.epochs, 'epoch')}, seed {case.seed}"
    )


def machine(document: Simulation) -> str:
    """'System deck: staging 1.02 GB, ram 51.2 GB'; of a grid, without what it varies."""
    system = document.system
    tiers = ", ".join(f"{name} {format_bytes(size)}" for name, size in system.tiers.items())
    return f"System {system.name}" + (f": {tiers}" if tiers else "")


def step_time(document: Simulation) -> str | None:
    """The sentence on the time of a step, or None where the system says a rate."""
    source = document.case.step_time
    return f"A step computes for {source}." if source else None


def assumption_sentence(document: Simulation) -> str | None:
    """The sentence on numbers of the system that no source gives, or None."""
    names = document.system.estimated
    return f"Estimated, no source gives it of this system: {', '.join(names)}." if names else None


def estimate_sentence(document: Simulation) -> str | None:
    """The sentence on jobs of which some nodes alone were simulated, or None."""
    cases: Sequence[Case | Cell] = document.cells if document.kind == GRID else [document.case]
    partial = [case for case in cases if (case.simulated_nodes or 0) < (case.nodes or 0)]
    if not partial:
        return None
    scope = f"{partial[0].simulated_nodes} of {partial[0].nodes} nodes are simulated"
    if len(partial) > 1 or document.kind == GRID:
        scope = f"In {len(partial)} of {len(cases)} cells not all nodes are simulated"
    return f"{scope}: the lower bound is exact, the other rows are estimates, and bytes are scaled up."


def starred_policies(document: Simulation) -> list[str]:
    """The policies whose time depends on how the readers of the PFS are counted, somewhere at least."""
    marked = {row.policy for row in document.rows if mark(row)}
    return [name for name in policies(document) if name in marked]


def describe_sharing(document: Simulation) -> str:
    """How the PFS is taken to be shared: 'all 4 nodes, always (--pfs-clients worst)'."""
    case, clients = document.case, document.pfs_clients
    everyone = "all nodes, always" if case.nodes is None else f"all {case.nodes} nodes, always"
    text = {
        "published": "as the published simulator counted them",
        "conserved": f"{everyone}, whose threads share the node's part",
    }.get(clients, everyone)
    return f"{text} (--pfs-clients {clients})"


def _fastest(rows: Sequence[Row]) -> Row:
    """The row of the least time; the first one where no policy applies."""
    return min(rows, key=lambda row: math.inf if row.seconds is None else row.seconds)


def _third(rest: Sequence[Axis]) -> Iterator[tuple[tuple[int, ...], str]]:
    if not rest:
        yield (), ""
        return
    axis = rest[0].name
    for value in rest[0].values:
        yield (value,), f" · {axis} {value_text(axis, value)}"
