"""A simulation as one self-contained HTML page, like the pages of results: plotly.js and the data are inside."""

import shlex
from pathlib import Path
from typing import Any

from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.simulation import access_frequency
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation import figures as simulation_figures
from dlio_bench.reports.simulation.document import Map
from dlio_bench.reports.simulation.types import GRID, Accesses, Row, Simulation
from dlio_bench.reports.view.drawing import Figure
from dlio_bench.reports.view.page import render
from dlio_bench.reports.view.sections import Head
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
    drawn = {f"map{position}": simulation_figures.heat_map(map_, end) for position, map_ in enumerate(maps)}
    if not is_grid:
        drawn = {"bars": simulation_figures.bars(document)}
    accesses = document.accesses
    charts = drawn if accesses is None else drawn | {"frequencies": simulation_figures.frequencies(accesses)}
    return render(
        "simulation.html.j2",
        Head(
            title=f"PREDICTION · {document.case.title}",
            overline=f"simulate · version {document.version}",
            heading=document.case.title,
            subjects=[simulation.subject(document), simulation.machine(document)],
            badge="PREDICTION",
        ),
        charts,
        is_grid=is_grid,
        bounds=simulation.bounds(document),
        step_time=simulation.step_time(document),
        assumed=simulation.assumed(document),
        estimated=simulation.estimated(document),
        starred=simulation.starred(document),
        counted=simulation.counted(document),
        inapplicable=simulation.inapplicable(document),
        maps=[_map(name, map_, drawn[name]) for name, map_ in zip(drawn, maps, strict=False)],
        wide=any(len(map_.x) > simulation_figures.ROOMY for map_ in maps) or len(maps) == 1,
        maps_left_out=len(every) - len(maps),
        ticks=[(f"{100 * place:.3g}", label) for place, label in simulation_figures.ticks(end)],
        gradient=simulation_figures.gradient(),
        table=_cells(document) if is_grid else _rows(document),
        frequency=None if accesses is None else _frequency(document, accesses),
        command=shlex.join(document.command),
    )


def _map(name: str, map_: Map, figure: Figure) -> dict[str, Any]:
    """What the template shows of a heat map, and what a screen reader says instead."""
    cells = [cell for row in map_.cells for cell in row]
    done = sorted((cell for cell in cells if cell.seconds is not None), key=lambda cell: cell.over_bound or 0.0)
    caption = "applies nowhere"
    if done:
        ends = [done[0], done[-1]] if done[0].over_bound != done[-1].over_bound else [done[0]]
        caption = " to ".join(_place(cell, named=map_.named or not map_.down) for cell in ends)
        caption = caption if len(ends) > 1 else f"{simulation.ratio_text(1 + (done[0].over_bound or 0.0))} everywhere"
    return {
        "name": name,
        "title": map_.title,
        "named": map_.named,
        "caption": caption,
        "height": figure["layout"]["height"],
        "least_width": 100 + len(map_.x) * (78 if len(map_.x) <= 2 * simulation_figures.ROOMY else 52),
        "label": f"Heat map of {map_.title}, {map_.across} across, {map_.down or 'policies'} down: {caption}.",
    }


def _frequency(document: Simulation, accesses: Accesses) -> dict[str, Any]:
    """What the template says of how often a node reads a sample."""
    rows = [(times, f"{samples:,}", f"{expected:,.1f}") for times, samples, expected in access_frequency.rows(accesses)]
    return {
        "heading": access_frequency.heading(document),
        "conclusion": access_frequency.conclusion(accesses),
        "rows": rows,
    }


def _place(cell: Row, *, named: bool) -> str:
    policy = f" with {cell.policy}" if named else ""
    return f"{simulation.ratio_text(1 + (cell.over_bound or 0.0))}{policy} at {simulation.place_text(cell.place)}"


def _rows(document: Simulation) -> dict[str, Any]:
    """The table of one case: a row for each policy, fastest first, those that do not apply last."""
    sources = list(dict.fromkeys(name for row in document.rows for name in row.bytes))
    done = [row for row in document.rows if row.seconds is not None]
    rows = []
    for row in sorted(done, key=lambda row: row.took):
        published = [simulation.published_text(row) or "-"] if simulation.has_published(document) else []
        cells = [f"{row.seconds:,.2f}", f"{row.over_bound:.2%}", *published, f"{row.stall_seconds:,.2f}"]
        cells += [format_bytes(row.bytes[name]) if name in row.bytes else "-" for name in sources]
        rows.append(([f"{row.policy} {simulation.mark(row)}"], cells))
    beside = ["over bound, as published"] if simulation.has_published(document) else []
    none = ["does not apply", *["-"] * (2 + len(beside) + len(sources))]
    rows += [([row.policy], none) for row in document.rows if row.seconds is None]
    taken = [f"from {simulation.source_title(name)}" for name in sources]
    heads = ["seconds", "over bound", *beside, "stall (s)", *taken]
    return {"keys": ["policy"], "heads": heads, "rows": rows}


def _cells(document: Simulation) -> dict[str, Any]:
    """The table of a grid: a row for each cell, a column for each policy."""
    names = simulation.policies(document)
    table = {(tuple(row.place.values()), row.policy): row for row in document.rows}
    rows = []
    for cell in document.cells:
        at = cell.at
        texts = []
        for name in names:
            row = table[tuple(at.values()), name]
            over = simulation.ratio(row)
            texts.append("n/a" if over is None else f"{simulation.seconds_text(row.took)}\n"
                        f"{simulation.ratio_text(over)}{simulation.mark(row)}")  # fmt: skip
        rows.append(([simulation.value_text(axis, value) for axis, value in at.items()], texts))
    keys = [simulation.axis_title(axis.name) for axis in document.axes]
    return {"keys": keys, "heads": names, "rows": rows}
