"""The study's figures from our runs, as plain {"data", "layout", "words"} dicts in plotly.js's own terms.

Published values are dashed lines beside ours, with their own node counts.
"""

from collections.abc import Sequence

from msgspec import Struct

from dlio_bench.reports.run.result_drawing import COLOURS, finish_figure, lay_out_rows, row_layout
from dlio_bench.reports.traces import study
from dlio_bench.reports.traces.accounting import ADDITIVE, MERGED, WAITING
from dlio_bench.reports.traces.bandwidth import times_ideal_bandwidth
from dlio_bench.reports.traces.scaling import Scaling, ScalingCase
from dlio_bench.reports.view import drawing
from dlio_bench.reports.view.drawing import Figure, escape_markup
from dlio_bench.reports.view.formatting import format_share, format_time
from dlio_bench.units import format_bytes

PUBLISHED = ""
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "x")
SHORT = {ADDITIVE: "reading", MERGED: "reading, merged", WAITING: "waiting"}
DASHES = ("dash", "dot", "dashdot", "longdash")
PUBLISHED_EPOCHS = 64  # nodes of the published lines over epochs: the fewest; the table has all
BAR, HEIGHT, LEAST_LABELLED = 26, 300, 4
LEAST_HEIGHT = 190  # px: of a single bar, below the legend of a telephone
LEGEND_ENTRIES, LEGEND_ROW = 3, 19  # in a row of the legend; px of a row
MOST_TICKS = 5  # node counts below the axis: on a telephone more lie on each other
MOST_LINES = 8  # of our results over epochs; the table has all


class Line(Struct, frozen=True):
    """One line of a figure. points: x, y and a text as in the tables; owner: its reader, or PUBLISHED.

    Lines of one owner have one colour, and markers that differ.
    """

    owner: str
    what: str
    points: Sequence[tuple[float, float, str]]

    @property
    def published(self) -> bool:
        """Whether the study published it."""
        return self.owner == PUBLISHED

    @property
    def name(self) -> str:
        """As the legend has it."""
        return f"{self.owner or 'published'}, {self.what}"


def figures(scalings: Sequence[Scaling]) -> dict[str, Figure]:
    """The figures of one workload's readers by what they show."""
    results = [case.result for scaling in scalings for case in scaling.cases]
    drawn = {
        "nodes": _lines(_shares_by_nodes(scalings), "nodes", "I/O share (%)", log_x=True),
        "epochs": _lines(_shares_by_epochs(scalings), "epoch", "I/O share (%)"),
        "bandwidth": _lines(_rates(scalings), "nodes", "read bandwidth (GB/s)", log_x=True, log_y=True),
        "ideal": _lines(_ideal_lines(scalings), "nodes / first node count", "bandwidth, × ideal", log_x=True),
        "critical": _critical([case for scaling in scalings for case in scaling.cases]),
    }
    return {
        name: finish_figure(figure["data"], figure["layout"], figure["words"], results)
        for name, figure in drawn.items()
        if figure is not None
    }


def _shares_by_nodes(scalings: Sequence[Scaling]) -> list[Line]:
    lines = []
    for scaling in scalings:
        for how in dict.fromkeys((scaling.how, WAITING)):
            shares = [(case.nodes, account.share) for case in scaling.cases if (account := case.account(how))]
            known = [(nodes, share) for nodes, share in shares if share is not None]
            lines.append(_share_line(scaling.reader, SHORT[how], known))
    for table in study.tables(scalings[0].workload):
        points = [(total.nodes, total.shares["read"] / 100) for total in table.totals]
        lines.append(_share_line(PUBLISHED, table.name, points))
    return lines


def _shares_by_epochs(scalings: Sequence[Scaling]) -> list[Line]:
    lines = []
    for scaling in scalings:
        for case in scaling.cases:
            if account := case.account(scaling.how):
                known = [(epoch + 1, share) for epoch, share in account.shares.items() if share is not None]
                lines.append(_share_line(scaling.reader, f"{case.name}, {SHORT[scaling.how]}", known))
    lines = lines[:MOST_LINES]
    for row in study.epochs(scalings[0].workload):
        if row.nodes == PUBLISHED_EPOCHS:
            points = [(number, share / 100) for number, (_, share) in enumerate(row.parts["read"], 1)]
            lines.append(_share_line(PUBLISHED, f"{row.nodes} nodes, {row.name}", points))
    return lines


def _rates(scalings: Sequence[Scaling]) -> list[Line]:
    lines = []
    for owner, what, nodes, rates in _all_rates(scalings):
        points = [
            (count, rate / 1e9, f"{rate / 1e9:g} GB/s" if owner == PUBLISHED else f"{format_bytes(rate)}/s")
            for count, rate in zip(nodes, rates, strict=True)
            if rate
        ]
        lines.append(Line(owner, what, points))
    return lines


def _ideal_lines(scalings: Sequence[Scaling]) -> list[Line]:
    """Bandwidth over what the first node count's would give on all nodes, against how many times as many these are."""
    lines = []
    for owner, what, nodes, rates in _all_rates(scalings):
        times = zip(nodes, times_ideal_bandwidth(rates, nodes), strict=True)
        points = [(count / nodes[0], value, f"{value:.2f}×") for count, value in times if value is not None]
        if len({x for x, *_ in points}) > 1:
            lines.append(Line(owner, what, points))
    return lines


def _all_rates(scalings: Sequence[Scaling]) -> list[tuple[str, str, list[int], list[float | None]]]:
    """Owner, what, nodes and bytes a second of each line.

    Ours are in a node's time, which every result has, and while any rank reads, where there are spans.
    """
    rows: list[tuple[str, str, list[int], list[float | None]]] = []
    for scaling in scalings:
        nodes = [case.nodes for case in scaling.cases]
        for kind, said in (("by_node_seconds", "in a node's time"), ("by_merged_seconds", "while any reads")):
            rates = [getattr(case.bandwidth, kind) for case in scaling.cases]
            if any(rates):
                rows.append((scaling.reader, said, nodes, rates))
    for table in study.tables(scalings[0].workload):
        nodes = [total.nodes for total in table.totals]
        rows.append((PUBLISHED, table.name, nodes, [1e9 * total.gigabytes for total in table.totals]))
    return rows


def _critical(cases: Sequence[ScalingCase]) -> Figure | None:
    """Seconds of the critical path by phase, stacked, a bar for each result."""
    known = [(case, case.critical) for case in cases if case.critical is not None]
    if not known:
        return None
    names = list(dict.fromkeys(name for _, path in known for name in path.phases))
    shape = lay_out_rows({"": [case.label for case, _ in known]})
    data: list[Figure] = []
    for name in names:
        seconds = [path.phases.get(name, 0.0) for _, path in known]
        shares = [100 * value / path.total for value, (_, path) in zip(seconds, known, strict=True)]
        data.append({
            "type": "bar", "orientation": "h", "name": name, "y": shape.places, "x": seconds,
            "text": [f"{share:.0f} %" if share >= LEAST_LABELLED else "" for share in shares],
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "textfont": {"color": "--on-strong" if name in ("stall", "compute") else "--on-pale"},
            "marker": {"color": f"--share-{name}"},
            "hovertext": [format_time(value) for value in seconds],
            "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    layout = row_layout(shape, "seconds", BAR) | {"barmode": "stack"}
    layout["legend"] |= {"traceorder": "normal"}
    layout["height"] = max(layout["height"], LEAST_HEIGHT)
    bars = [
        f"{case.label}: " + ", ".join(f"{name} {format_time(value)}" for name, value in path.phases.items())
        for case, path in known
    ]
    return {"data": data, "layout": layout, "words": f"Stacked bars: {'; '.join(bars)}."}


def _share_line(owner: str, what: str, points: Sequence[tuple[float, float]]) -> Line:
    return Line(owner, what, [(x, 100 * share, format_share(share)) for x, share in points])


def _lines(lines: Sequence[Line], across: str, up: str, *, log_x: bool = False, log_y: bool = False) -> Figure | None:
    """A figure of lines; None where ours would have no point."""
    shown = [line for line in lines if line.points]
    if all(line.published for line in shown):
        return None
    data: list[Figure] = []
    owners = [owner for owner in dict.fromkeys(line.owner for line in shown) if owner != PUBLISHED]
    counts = dict.fromkeys([*owners, PUBLISHED], 0)
    for line in shown:
        number = counts[line.owner]
        counts[line.owner] += 1
        symbol = MARKERS[number % len(MARKERS)]
        colour = "--soft" if line.published else COLOURS[owners.index(line.owner) % len(COLOURS)]
        dash = {"dash": DASHES[number % len(DASHES)]} if line.published else {}
        x, y, texts = (list(column) for column in zip(*line.points, strict=True))
        data.append({
            "type": "scatter", "mode": "lines+markers", "x": x, "y": y, "name": escape_markup(line.name),
            "line": {"color": colour, "width": 1.5} | dash,
            "marker": {"size": 6 if line.published else 8, "symbol": f"{symbol}-open" if line.published else symbol},
            "hovertext": [escape_markup(str(text)) for text in texts],
            "hovertemplate": f"%{{x}} {across}: %{{hovertext}}<extra>%{{fullData.name}}</extra>",
        })  # fmt: skip
    all_x = _ticks(shown)
    all_y = [y for line in shown for _, y, _ in line.points if y > 0]
    ticks = {"tickvals": all_x, "ticktext": [f"{x:g}" for x in all_x]}
    layout = drawing.layout(HEIGHT + LEGEND_ROW * (len(shown) // LEGEND_ENTRIES)) | {
        "xaxis": drawing.axis(across, **({"type": "log"} if log_x else {}), **ticks),
        "yaxis": drawing.log_axis(up, all_y) if log_y and all_y else drawing.axis(up, rangemode="tozero"),
    }
    return {"data": data, "layout": layout, "words": f"Lines: {'; '.join(map(_line_label, shown))}."}


def _ticks(lines: Sequence[Line]) -> list[float]:
    """Ours, as many as fit, and the ends of the published ones."""
    own, others = (
        sorted({x for line in lines if line.published == is_published for x, *_ in line.points})
        for is_published in (False, True)
    )
    return sorted({*own[:: -(-len(own) // MOST_TICKS)], *others[:1], *others[-1:]})


def _line_label(line: Line) -> str:
    return f"{line.name}: {', '.join(f'{text} at {x:g}' for x, _, text in line.points)}"
