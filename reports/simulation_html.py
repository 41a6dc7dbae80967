"""A simulation as one self-contained HTML page, like the pages of results: plotly.js and the data are inside."""

import shlex
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dlio_bench.reports import simulation, simulation_figures
from dlio_bench.reports.drawing import Figure
from dlio_bench.reports.files import write_whole
from dlio_bench.reports.page import embedded, template
from dlio_bench.reports.simulation import Map
from dlio_bench.reports.simulation_types import GRID, Row, Simulation
from dlio_bench.units import format_bytes

MOST_MAPS = 60  # more would make the page slow; the table has every cell


def write(document: Simulation, path: Path) -> None:
    """Write the page of a document to `path`, whole or not at all. EnvironmentFailure."""
    write_whole(path, page(document).encode())


def page(document: Simulation) -> str:
    """The page's HTML. Every text of the document is escaped; the figures' data are JSON in a script element."""
    is_grid = document.kind == GRID
    every = simulation.maps(document) if is_grid else []
    maps = every[:MOST_MAPS]
    end = simulation_figures.ceiling(every)
    drawn = {f"map{position}": simulation_figures.heat_map(one, end) for position, one in enumerate(maps)}
    if not is_grid:
        drawn = {"bars": simulation_figures.bars(document)}
    return template("simulation.html.j2").render(
        document=document,
        is_grid=is_grid,
        subject=simulation.subject(document),
        machine=simulation.machine(document),
        bounds=simulation.bounds(document),
        step_time=simulation.step_time(document),
        assumed=simulation.assumed(document),
        estimated=simulation.estimated(document),
        starred=simulation.starred(document),
        counted=simulation.counted(document),
        inapplicable=simulation.inapplicable(document),
        maps=[_map(name, one, drawn[name]) for name, one in zip(drawn, maps, strict=False)],
        wide=any(len(one.x) > simulation_figures.ROOMY for one in maps) or len(maps) == 1,
        maps_left_out=len(every) - len(maps),
        ticks=[(f"{100 * place:.3g}", said) for place, said in simulation_figures.ticks(end)],
        gradient=simulation_figures.gradient(),
        table=_cells(document) if is_grid else _rows(document),
        command=shlex.join(document.command),
        plotly=get_plotlyjs(),
        drawn=embedded(drawn),
        heights={name: figure["layout"]["height"] for name, figure in drawn.items()},
    )


def _map(name: str, one: Map, figure: Figure) -> dict[str, Any]:
    """What the template shows of a heat map, and what a screen reader says instead."""
    cells = [cell for row in one.cells for cell in row]
    done = sorted((cell for cell in cells if cell.seconds is not None), key=lambda cell: cell.over_bound or 0.0)
    said = "applies nowhere"
    if done:
        ends = [done[0], done[-1]] if done[0].over_bound != done[-1].over_bound else [done[0]]
        said = " to ".join(_place(cell, named=one.named or not one.down) for cell in ends)
        said = said if len(ends) > 1 else f"{simulation.said_ratio(1 + (done[0].over_bound or 0.0))} everywhere"
    return {
        "name": name,
        "title": one.title,
        "named": one.named,
        "caption": said,
        "height": figure["layout"]["height"],
        "least_width": 100 + len(one.x) * (78 if len(one.x) <= 2 * simulation_figures.ROOMY else 52),
        "label": f"Heat map of {one.title}, {one.across} across, {one.down or 'policies'} down: {said}.",
    }


def _place(cell: Row, *, named: bool) -> str:
    who = f" with {cell.policy}" if named else ""
    return f"{simulation.said_ratio(1 + (cell.over_bound or 0.0))}{who} at {simulation.said_cell(cell.place)}"


def _rows(document: Simulation) -> dict[str, Any]:
    """The table of one case: a row for each policy, fastest first, those that do not apply last."""
    sources = list(dict.fromkeys(name for row in document.rows for name in row.bytes))
    done = [row for row in document.rows if row.seconds is not None]
    rows = []
    for row in sorted(done, key=lambda row: row.took):
        cells = [f"{row.seconds:,.2f}", f"{row.over_bound:.2%}", f"{row.stall_seconds:,.2f}"]
        cells += [format_bytes(row.bytes[name]) if name in row.bytes else "-" for name in sources]
        rows.append(([f"{row.policy} {simulation.mark(row)}"], cells))
    none = ["does not apply", *["-"] * (2 + len(sources))]
    rows += [([row.policy], none) for row in document.rows if row.seconds is None]
    heads = ["seconds", "over bound", "stall (s)", *(f"from {simulation.said_source(name)}" for name in sources)]
    return {"keys": ["policy"], "heads": heads, "rows": rows}


def _cells(document: Simulation) -> dict[str, Any]:
    """The table of a grid: a row for each cell, a column for each policy."""
    names = simulation.policies(document)
    found = {(tuple(row.place.values()), row.policy): row for row in document.rows}
    rows = []
    for cell in document.cells:
        at = cell.at
        said = []
        for name in names:
            row = found[tuple(at.values()), name]
            over = simulation.ratio(row)
            said.append("n/a" if over is None else f"{simulation.said_seconds(row.took)}\n"
                        f"{simulation.said_ratio(over)}{simulation.mark(row)}")  # fmt: skip
        rows.append(([simulation.said_value(axis, value) for axis, value in at.items()], said))
    keys = [simulation.said_axis(axis.name) for axis in document.axes]
    return {"keys": keys, "heads": names, "rows": rows}
