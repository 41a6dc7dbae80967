"""The figures of a simulation's report, as plain dicts in plotly.js's own terms."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dlio_bench.reports.simulation import access_frequency
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.document import Map
from dlio_bench.reports.simulation.types import Accesses, Row, Simulation
from dlio_bench.reports.view.drawing import GAP, STALL_SCALE, Figure, axis, escape_markup, layout, round_floats
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrap

LEAST_CEILING = 1.25  # times the bound: the colours of a scale that ends lower would make much of little
TICKS = (1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 200, 500, 1000)
TICK_GAP = 0.09  # of the scale's length: closer numbers would run into each other
LEAST_CONTRAST = 4.0  # of light text, as ratio of relative luminances (WCAG 2.2); dark text then has 4.2 at least
ROOMY = 6  # columns of a map that has room in half of the page; twice as many leave a cell two lines
MARKED = 60  # numbers of reads up to which each has a mark
# From the fastest source to the slowest; patterns tell them apart in print.
SOURCES = {"ram": ("#3f6c9b", ""), "": ("#8fb8a3", "."), "remote": ("#e9b872", "\\"), "pfs": ("#c8553d", "x")}


def ceiling(maps: Sequence[Map]) -> float:
    """The end of the colour scale that all maps share: times the lower bound, a tick at or above every cell."""
    ratios = [ratio for each in maps for row in each.cells for cell in row if (ratio := simulation.ratio(cell))]
    greatest = max(ratios, default=1.0)
    return next((tick for tick in TICKS if tick >= max(greatest, LEAST_CEILING)), greatest)


def ticks(end: float) -> list[tuple[float, str]]:
    """(place from 0 to 1, number) of the scale's ticks; the scale is logarithmic, and both ends have one."""
    kept = [(0.0, "1×")]
    for tick in TICKS[1:]:
        place = _place(tick, end)
        if place - kept[-1][0] >= TICK_GAP and 1 - place >= TICK_GAP:
            kept.append((place, f"{tick:g}×"))
    return [*kept, (1.0, f"{end:.3g}×")]


def gradient() -> str:
    """The colour scale as CSS."""
    return f"linear-gradient(to right, {', '.join(f'{colour} {100 * stop:g}%' for stop, colour in STALL_SCALE)})"


def heat_map(map_: Map, end: float) -> Figure:
    """A map's cells, coloured by the logarithm of the time over the bound; hatched where the policy does not apply."""
    drawn = layout(104 + 46 * len(map_.y)) | {
        "margin": {"l": 60, "r": 10, "t": 32, "b": 48},
        "bargap": 0,
        "showlegend": False,
        "xaxis": _categories(map_.across, map_.x),
        "yaxis": _categories(map_.down, map_.y) | {"autorange": False, "range": [len(map_.y) - 0.5, -0.5]},
    }
    shades = {
        "type": "heatmap", "z": [[_shade(cell, end) for cell in row] for row in map_.cells],
        "zmin": 0, "zmax": 1, "colorscale": STALL_SCALE, "showscale": False, "xgap": 2, "ygap": 2,
        "hovertext": [[_hover(cell) for cell in row] for row in map_.cells],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip
    return _figure([shades, *_hatching_bars(map_), _numbers(map_, end)], drawn)


def _numbers(map_: Map, end: float) -> Figure:
    """The cells' numbers, dark on light and light on dark."""
    texts, colours = [], []
    roomy = len(map_.x) <= 2 * ROOMY
    for row in map_.cells:
        for cell in row:
            text = _cell_text(cell, roomy=roomy or map_.named, named=map_.named)
            texts.append(text if len(map_.x) <= ROOMY else text.replace("-", "-<br>", 1))
            colours.append(_text_colour(_shade(cell, end) or 0.0))
    columns = len(map_.x)
    return {
        "type": "scatter", "mode": "text", "x": [place % columns for place in range(len(texts))],
        "y": [place // columns for place in range(len(texts))], "text": texts, "hoverinfo": "skip",
        "textfont": {"size": 12 if columns <= 2 * ROOMY else 10, "color": colours},
    }  # fmt: skip


def _hatching_bars(map_: Map) -> list[Figure]:
    """Bars that fill the cells of a policy that does not apply."""
    cells = [
        (x, y, _hover(cell)) for y, row in enumerate(map_.cells) for x, cell in enumerate(row) if cell.seconds is None
    ]
    pattern = {"shape": "/", "fgcolor": "#9a9da3", "bgcolor": "#ffffff", "size": 9, "solidity": 0.2}
    bars = {
        "type": "bar", "x": [x for x, _, _ in cells], "base": [y - 0.47 for _, y, _ in cells],
        "y": [0.94] * len(cells), "width": 0.97, "hovertext": [hover for _, _, hover in cells],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": "#ffffff", "line": {"color": "#bdbab2", "width": 1}, "pattern": pattern},
    }  # fmt: skip
    return [bars] if cells else []


def bars(document: Simulation) -> Figure:
    """One case: each policy's time, split at the lower bound, and the bytes that it reads from each tier."""
    rows = sorted((row for row in document.rows if row.seconds is not None), key=lambda row: row.elapsed_seconds)
    names = [escape_markup(f"{row.policy} {simulation.mark(row)}".strip()) for row in rows]
    bounds = [row.elapsed_seconds / (simulation.ratio(row) or 1) for row in rows]
    over = [max(0.0, row.elapsed_seconds - bound) for row, bound in zip(rows, bounds, strict=True)]
    bar: Figure = {"type": "bar", "orientation": "h", "y": names}
    data: list[Figure] = [
        bar | {"x": bounds, "name": "lower bound: compute alone", "marker": {"color": "#9db4c8"},
                 "hovertemplate": "%{x:.5g} s<extra>lower bound</extra>"},
        bar | {"x": over, "name": "over the bound", "marker": _pattern_fill("#7f2a1d", "/"),
                 "text": [_cell_text(row, roomy=True).replace("<br>", " · ") for row in rows],
                 "textposition": "outside", "cliponaxis": False, "textfont": {"size": 12},
                 "hovertemplate": "%{x:.5g} s<extra>over the bound</extra>"},
    ]  # fmt: skip
    for source in dict.fromkeys(name for row in rows for name in row.bytes):
        colour, pattern = SOURCES.get(source, SOURCES[""])
        sizes = [row.bytes.get(source, 0) for row in rows]
        data.append(
            bar | {"x": [size / 1e9 for size in sizes], "xaxis": "x2",
                     "name": escape_markup(simulation.source_title(source)),
                     "hovertext": [format_bytes(size) for size in sizes],
                     "marker": _pattern_fill(colour, pattern),
                     "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>"}
        )  # fmt: skip
    longest = max(row.elapsed_seconds for row in rows) if rows else 1.0
    drawn = layout(120 + 34 * len(rows)) | {
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": axis("time (s)", domain=[0, 0.5], range=[0, 1.42 * longest]),
        "xaxis2": axis("read by all nodes in all epochs (GB, 10⁹ bytes)", domain=[0.54, 1], rangemode="tozero"),
        "yaxis": axis("", autorange="reversed", showgrid=False, **GAP),
    }
    drawn["legend"] |= {"traceorder": "normal"}
    return _figure(data, drawn)


def frequencies(accesses: Accesses) -> Figure:
    """How many samples a node reads how often: bars as counted on the plan, a line as the binomial distribution."""
    shown = access_frequency.present(accesses)
    times = list(range(shown.start, shown.stop))
    data: list[Figure] = [
        {"type": "bar", "x": times, "y": accesses.histogram[shown], "name": "counted on the plan",
         "marker": {"color": "#9db4c8"}, "hovertemplate": "%{x} times: %{y} samples<extra>plan</extra>"},
        {"type": "scatter", "mode": "lines+markers" if len(times) <= MARKED else "lines", "x": times,
         "y": accesses.expected[shown], "name": "binomial distribution",
         "line": {"color": "#7f2a1d", "width": 2}, "marker": {"size": 5},
         "hovertemplate": "%{x} times: %{y:.1f} samples<extra>binomial</extra>"},
    ]  # fmt: skip
    drawn = layout(320) | {
        "bargap": 0.15,
        "xaxis": axis("times that the node reads a sample", showgrid=False),
        "yaxis": axis("samples", rangemode="tozero"),
    }
    return _figure(data, drawn)


def luminance(shade: float) -> float:
    """Relative luminance of the scale's colour at `shade`, 0 (black) to 1 (white), as WCAG 2.2 defines it."""
    stops = [stop for stop, _ in STALL_SCALE]
    total = 0.0
    for weight, first in ((0.2126, 1), (0.7152, 3), (0.0722, 5)):
        value = float(np.interp(shade, stops, [int(colour[first : first + 2], 16) / 255 for _, colour in STALL_SCALE]))
        total += weight * (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return total


def _place(over: float, end: float) -> float:
    """Where a ratio lies on the scale from 1 (0) to `end` (1)."""
    return math.log(over) / math.log(end)


def _shade(cell: Row, end: float) -> float | None:
    over = simulation.ratio(cell)
    return None if over is None else max(0.0, _place(over, end))


def _text_colour(shade: float) -> str:
    """White where it contrasts with the scale's colour at `shade` by LEAST_CONTRAST, else black, which then does."""
    return "#ffffff" if 1.05 / (luminance(shade) + 0.05) >= LEAST_CONTRAST else "#000000"


def _cell_text(cell: Row, *, roomy: bool, named: bool = False) -> str:
    over = simulation.ratio(cell)
    if over is None:
        return "<b>n/a</b>"
    text = simulation.ratio_text(over) + simulation.mark(cell)
    below = escape_markup(cell.policy) if named else simulation.seconds_text(cell.elapsed_seconds)
    return f"{text}<br>{below}" if roomy else text


def _hover(cell: Row) -> str:
    heading = f"<b>{escape_markup(cell.policy)}</b><br>{escape_markup(simulation.place_text(cell.grid_cell))}"
    over = simulation.ratio(cell)
    if over is None:
        reason = "<br>".join(map(escape_markup, wrap(f"does not apply: {cell.reason}", width=60)))
        return f"{heading}<br>{reason}"
    sources = ", ".join(
        f"{simulation.source_title(name)} {format_bytes(size)}" for name, size in cell.bytes.items() if size
    )
    folded = "<br>".join(map(escape_markup, wrap(sources, width=60)))
    return (
        f"{heading}<br>{simulation.seconds_text(cell.elapsed_seconds)}, {simulation.ratio_text(over)} the lower bound"
        f"<br>stall {simulation.seconds_text(cell.stall_seconds or 0.0)}<br>{folded}"
    )


def _categories(title: str, names: Sequence[str]) -> Figure:
    return axis(
        escape_markup(title), tickvals=list(range(len(names))), ticktext=list(map(escape_markup, names)),
        showgrid=False, zeroline=False,
        range=[-0.5, len(names) - 0.5],
    )  # fmt: skip


def _pattern_fill(colour: str, pattern: str) -> Figure:
    return {"color": colour, "pattern": {"shape": pattern, "fgcolor": "#ffffff", "fillmode": "overlay", "size": 6,
            "solidity": 0.15}}  # fmt: skip


def _figure(data: list[Figure], drawn: Mapping[str, Any]) -> Figure:
    return dict(round_floats({"data": data, "layout": dict(drawn)}))
