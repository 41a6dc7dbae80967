"""Figures as SVG, PDF and PNG by matplotlib, from the dicts that plotly.js draws on pages and in notebooks.

It knows what the figures of this project use, and no more: bars, lines, marks, histograms, heat maps, panels.
"""

import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import unescape
from typing import TYPE_CHECKING, Any

import numpy as np

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.reports.view.drawing import Figure
from dlio_bench.reports.view.page import TEMPLATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FORMATS = ("svg", "pdf", "png")
COLUMN = 3.5  # inches: a column of IEEE's and ACM's two, in which texts have STYLE's points
PIXELS = 105  # of a page, an inch of height
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}
SYMBOLS = {"circle": "o", "circle-open": "o", "diamond": "D", "diamond-open": "D", "line-ns": "|"}
CYCLE = ("#1f5a99", "#c2571a", "#3c8d5a", "#8a4fa3", "#b03a48", "#7a7a2c", "#2c7a7a", "#5b5b5b")
STYLE = {
    "font.family": "sans-serif", "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "axes.axisbelow": True, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.edgecolor": "#33373d",
    "lines.linewidth": 1.2, "lines.markersize": 4, "pdf.fonttype": 42, "svg.hashsalt": "dlio-bench",
}  # fmt: skip


def image(figure: Figure, kind: str, note: str = "") -> bytes:
    """The figure as a file of that format, one column wide, of panels two; the same bytes from the same figure.

    note: stands below it. EnvironmentFailure without matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise EnvironmentFailure(
            "Figures in files need matplotlib, which is not installed. Install it with pip install "
            "'dlio-bench[figures]'."
        ) from None
    with rc_context(STYLE):  # type: ignore[arg-type] # its names are a Literal
        canvas = Canvas(layout="constrained")
        _draw(canvas, figure, note)
        file = io.BytesIO()
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
        canvas.savefig(file, format=kind, dpi=300, bbox_inches="tight", metadata=dated)
    return file.getvalue()


def _draw(canvas: "Canvas", figure: Figure, note: str) -> None:
    layout = figure["layout"]
    names = list(dict.fromkeys(str(trace.get("xaxis", "x")) for trace in figure["data"]))
    canvas.set_size_inches(COLUMN * min(2, len(names)), max(1.5, layout["height"] / PIXELS))
    grid = canvas.subplots(-(-len(names) // 2), min(2, len(names)), squeeze=False)
    panels = dict(zip(names, np.ravel(grid), strict=False))
    floor: dict[Any, float] = {}  # of stacked bars
    for number, trace in enumerate(figure["data"]):
        if trace.get("opacity") != 0:
            draw = {"bar": _bar, "scatter": _scatter, "histogram": _histogram, "heatmap": _heatmap}[trace["type"]]
            draw(panels[trace.get("xaxis", "x")], trace, layout, CYCLE[number % len(CYCLE)], floor)
    titles = [words["text"] for words in layout.get("annotations", []) if words.get("yref") == "paper"]
    for position, (name, axes) in enumerate(panels.items()):
        _finish(axes, layout, name[1:].removeprefix("1"), len(panels))
        if len(titles) == len(panels) > 1:
            axes.set_title(_escape_mathtext(titles[position]), fontsize=8)
    texts = [part for part in (_escape_mathtext(_text(layout.get("title"))), note) if part]
    if texts:
        canvas.supxlabel("\n".join(texts), fontsize=6, color="#646971")


def _bar(axes: "Axes", trace: Figure, layout: Figure, colour: str, floor: dict[Any, float]) -> None:
    flat = trace.get("orientation") == "h"
    at, values = (trace["y"], trace["x"]) if flat else (trace["x"], trace["y"])
    at = [_escape_mathtext(place) if isinstance(place, str) else place for place in at]
    lengths = [float(value or 0.0) for value in values]
    base = float(trace.get("base", 0))
    starts = [floor.get(place, base) for place in at] if layout.get("barmode") == "stack" else [base] * len(at)
    if layout.get("barmode") == "stack":
        floor |= {place: start + length for place, start, length in zip(at, starts, lengths, strict=True)}
    marker = trace.get("marker", {})
    look: dict[str, Any] = {
        "color": _colours(marker.get("color"), colour), "alpha": marker.get("opacity", 1), "label": _label(trace),
    }  # fmt: skip
    if flat:
        axes.barh(at, lengths, 0.7, left=starts, **look)
    else:
        axes.bar(at, lengths, 0.7, bottom=starts, **look)
    for place, start, length, said in zip(at, starts, lengths, trace.get("text", [""] * len(at)), strict=True):
        middle = start + length / 2
        told = _colours(trace.get("textfont", {}).get("color"), "#26292e")
        x, y = (middle, place) if flat else (place, middle)
        axes.text(x, y, said, ha="center", va="center", fontsize=6, color=told)
    _errors(axes, at, [start + length for start, length in zip(starts, lengths, strict=True)], trace)


def _errors(axes: "Axes", x: Sequence[Any], y: Sequence[Any], trace: Figure) -> None:
    """Intervals, of the points that have one: an absent one has no cap either."""
    bars = trace.get("error_x") or trace.get("error_y") or {"array": []}
    known = [row for row, end in enumerate(bars["array"]) if isinstance(end, int | float) and y[row] is not None]
    if known:
        ends = [[float(bars[side][row]) for row in known] for side in ("arrayminus", "array")]
        places, values = [x[row] for row in known], [y[row] for row in known]
        look: dict[str, Any] = {"fmt": "none", "ecolor": "#33373d", "elinewidth": 0.9, "capsize": 2}
        if "error_x" in trace:
            axes.errorbar(values, places, xerr=ends, **look)
        else:
            axes.errorbar(places, values, yerr=ends, **look)


def _scatter(axes: "Axes", trace: Figure, _layout: Figure, colour: str, _floor: object) -> None:
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace.get("mode", "lines")
    x = [np.nan if value is None else value for value in trace["x"]]
    y = [np.nan if value is None else value for value in trace["y"]]
    shown = _colours(line.get("color") or marker.get("color") or marker.get("line", {}).get("color"), colour)
    symbol = marker.get("symbol", "circle")
    look: dict[str, Any] = {
        "linestyle": DASHES[line.get("dash", "solid")] if "lines" in mode else "none",
        "drawstyle": "steps-post" if line.get("shape") == "hv" else "default",
        "label": _label(trace), "alpha": trace.get("opacity", 1),
    }  # fmt: skip
    if "markers" in mode:
        edge = _colours(marker.get("line", {}).get("color"), shown if isinstance(shown, str) else colour)
        look |= {"marker": SYMBOLS[symbol], "markersize": marker.get("size", 6) * 0.55, "markeredgecolor": edge}
        look |= {"markerfacecolor": "none"} if symbol.endswith("-open") else {}
    if isinstance(shown, str):
        axes.plot(x, y, color=shown, **look)
    else:  # a colour a point
        for part in filter(len, np.split(np.arange(len(x)), np.flatnonzero(np.isnan(x)) + 1)):
            axes.plot(np.asarray(x)[part], np.asarray(y)[part], color=shown[part[0]], **look)
    _errors(axes, x, y, trace)


def _histogram(axes: "Axes", trace: Figure, _layout: Figure, colour: str, _floor: object) -> None:
    bins = np.arange(trace["xbins"]["start"], trace["xbins"]["end"] + trace["xbins"]["size"], trace["xbins"]["size"])
    axes.hist(trace["x"], bins.tolist(), color=colour, alpha=trace.get("opacity", 1), label=_label(trace))


def _heatmap(axes: "Axes", trace: Figure, _layout: Figure, _colour: str, _floor: object) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    grid = np.asarray(trace["z"], dtype=float)
    left, top = trace["x0"] - trace["dx"] / 2, trace["y0"] - trace["dy"] / 2
    ends = (left, left + trace["dx"] * grid.shape[1], top + trace["dy"] * grid.shape[0], top)
    scale = LinearSegmentedColormap.from_list("heat", [(at, _colours(name, name)) for at, name in trace["colorscale"]])
    drawn = axes.imshow(
        grid, scale, aspect="auto", extent=ends, vmin=trace["zmin"], vmax=trace["zmax"], interpolation="nearest"
    )
    axes.locator_params(axis="x", integer=True)
    bar = axes.get_figure(root=True).colorbar(drawn, ax=axes)  # type: ignore[union-attr] # axes have a figure
    bar.set_label(_text(trace["colorbar"]["title"]))
    bar.outline.set_visible(False)


def _finish(axes: "Axes", layout: Figure, number: str, panels: int) -> None:
    """Axes, lines and texts of a panel. number: of its axes in plotly's names, '' or '2'; panels: in all."""
    for way in ("x", "y"):
        _axis(axes, way, layout.get(f"{way}axis{number}", {}))
    right = layout.get("yaxis2", {})
    if right.get("overlaying") == "y":
        beside = axes.twinx()
        beside.set(
            ylim=axes.get_ylim(), yticks=right["tickvals"], yticklabels=list(map(_escape_mathtext, right["ticktext"]))
        )
        beside.tick_params(length=0)
        beside.spines[:].set_visible(False)
    for shape in layout.get("shapes", []):
        dash = DASHES[shape["line"].get("dash", "solid")]
        draw, at = (axes.axvline, "x0") if shape.get("yref") == "paper" else (axes.axhline, "y0")
        draw(shape[at], color=_colours(shape["line"].get("color"), "#33373d"), linewidth=0.7, linestyle=dash)
    for words in layout.get("annotations", []):
        _annotate(axes, words)
    if axes.get_legend_handles_labels()[1]:
        alone: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0.2}
        axes.legend(frameon=False, columnspacing=1, handlelength=1.6, **({} if panels > 1 else alone))


def _axis(axes: "Axes", way: str, asked: Figure) -> None:
    axes.set(**{f"{way}label": _escape_mathtext(_text(asked.get("title")))})
    axis, log = (axes.xaxis if way == "x" else axes.yaxis), asked.get("type") == "log"
    if log:
        axes.set(**{f"{way}scale": "log"})
    if (ends := asked.get("range")) is not None:
        axes.set(**{f"{way}lim": [10**end for end in ends] if log else ends})
    elif asked.get("rangemode") == "tozero":
        high = axes.get_xlim()[1] if way == "x" else axes.get_ylim()[1]
        axes.set(**{f"{way}lim": (0, 1.04 * high)})
    if "tickvals" in asked:
        axis.set_ticks(asked["tickvals"], [_escape_mathtext(said) for said in asked["ticktext"]])
        axis.minorticks_off()
    elif isinstance(asked.get("dtick"), int):
        axes.locator_params(axis="x" if way == "x" else "y", integer=True)
    elif asked.get("tickformat") == ".0%":
        axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if asked.get("showgrid", True):
        axis.grid(visible=True, linewidth=0.4, color="#e4e2dc")


def _annotate(axes: "Axes", words: Mapping[str, Any]) -> None:
    """A heading of rows, or the word that lies across what is no measurement."""
    text, bold = _escape_mathtext(words["text"]), words["text"].startswith("<b>")
    if "textangle" in words:
        axes.text(
            0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", rotation=-words["textangle"],
            color=_colours(words["font"]["color"], "#a3271c"), alpha=words["opacity"], fontsize=16,
        )  # fmt: skip
    elif words.get("yref") != "paper":
        axes.annotate(text, (0, words["y"]), (2, 0), ("axes fraction", "data"), "offset points", va="center",
                      fontsize=7, fontweight="bold" if bold else "normal")  # fmt: skip


def _label(trace: Figure) -> str | None:
    return _escape_mathtext(trace["name"]) if trace.get("name") and trace.get("showlegend", True) else None


def _text(title: Any) -> str:
    return str(title.get("text", "")) if isinstance(title, dict) else str(title or "")


def _escape_mathtext(text: str) -> str:
    """Without plotly's markup, and so that matplotlib takes no $ for mathematics."""
    return unescape(re.sub(r"</?b>", "", text.replace("<br>", "\n"))).replace("$", r"\$")


def _colours(asked: Any, otherwise: str) -> Any:
    """Colours as matplotlib has them; names of report.css in their light values."""
    if isinstance(asked, list | tuple):
        return [_colours(each, otherwise) for each in asked]
    return _palette().get(asked, asked) if asked else otherwise


@cache
def _palette() -> dict[str, str]:
    light = (TEMPLATES / "report.css").read_text("utf-8").partition("}")[0]
    return dict(re.findall(r"(--[\w-]+): (#\w+)", light))
