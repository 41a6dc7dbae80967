"""What the figures of results share: a row for each result, a colour for each reader, a word across what is void."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dlio_bench.reports.comparing.comparable import groups, places
from dlio_bench.reports.document.types import Metric, Result
from dlio_bench.reports.run import tables
from dlio_bench.reports.view import drawing
from dlio_bench.reports.view.drawing import INK, Figure, not_a_measurement, round_floats

COLOURS = tuple(f"--reader{number}" for number in range(8))
DASH_NAMES = {"solid": "solid", "dash": "dashed", "dot": "dotted", "dashdot": "dash and dot", "longdash": "long dashes"}
DASHES = tuple(DASH_NAMES)
TWO_LINES = 38  # px, of a row whose name has two
UNKNOWN = "-"  # as a number it is none, so that plotly.js draws no bar


class Rows(Struct, frozen=True):
    """Where the rows of a figure lie: a row a result, and one for the heading above those of a node count.

    places: of the results, from 0 downwards. names: of the results, without node counts where headings say them.
    headings: (place, text).
    """

    places: tuple[float, ...]
    names: tuple[str, ...]
    headings: tuple[tuple[float, str], ...]

    @property
    def count(self) -> int:
        """All rows, headings included."""
        return len(self.places) + len(self.headings)


def rows(results: Sequence[Result]) -> Rows:
    """The rows of results in the order of `comparable.groups`."""
    parted = groups(results).values()
    labels = flag_names([name for group in parted for name in tables.labels(group)], results)
    by_place: dict[str, list[str]] = {}
    for place, label in zip(places(results, results), labels, strict=True):
        by_place.setdefault(place, []).append(label)
    return lay_out_rows(by_place)


def readers_of(results: Sequence[Result]) -> list[str]:
    """The readers of results in the order of `comparable.groups`: a colour each, and a line over the node counts."""
    several = len({result.workload.name for result in results}) > 1
    names = [name for group in groups(results).values() for name in tables.labels(group)]
    return [f"{result.workload.name} {name}" if several else name for result, name in zip(results, names, strict=True)]


def flag_names(names: Sequence[str], results: Sequence[Result]) -> list[str]:
    """The names of results, 'prefetch · INVALID' where one is no measurement; `finish_figure` tells where all are."""
    words = [_invalid_word(result) for result in results]
    return [f"{name} · {word}" if word and not all(words) else name for name, word in zip(names, words, strict=True)]


def parts(labels: Sequence[str], titles: Sequence[str], results: Sequence[Result]) -> Rows:
    """Rows of parts of results, such as epochs. labels: of the result of each part, as `tables.labels` gives them."""
    named = zip(places(results, results), rows(results).names, strict=True)
    owners = dict(zip(tables.labels(results), named, strict=True))
    titled: dict[str, list[str]] = {}
    for label, title in zip(labels, titles, strict=True):
        place, name = owners[label]
        short = name if len(name) <= drawing.LINE else f"{name[: drawing.LINE - 1]}…"
        titled.setdefault(place, []).append(f"{short}, {title}")
    return lay_out_rows(titled)


def lay_out_rows(parted: Mapping[str, Sequence[str]]) -> Rows:
    """The rows of names in groups, {heading: names}; a single group needs no heading."""
    places: list[float] = []
    headings: list[tuple[float, str]] = []
    for heading, names in parted.items():
        if len(parted) > 1:
            headings.append((float(len(places) + len(headings)), heading))
        top = len(places) + len(headings)
        places += [float(top + number) for number in range(len(names))]
    return Rows(tuple(places), tuple(name for names in parted.values() for name in names), tuple(headings))


def row_layout(shape: Rows, title: str, row_height: int, **horizontal: object) -> Figure:
    """The layout of a figure of horizontal bars, one in each row, with an axis of this title below."""
    names = [drawing.lines(name) for name in shape.names]
    if any("<br>" in name for name in names):
        row_height = max(row_height, TWO_LINES)
    layout = drawing.layout(92 + row_height * shape.count) | {
        "bargap": 0.3,
        "xaxis": drawing.axis(title, **horizontal),
        "yaxis": drawing.axis(
            "", showgrid=False, zeroline=False, range=[shape.count - 0.4, -0.6], tickvals=list(shape.places),
            ticktext=names, **drawing.GAP,
        ),
    }  # fmt: skip
    if shape.headings:
        layout["annotations"] = [
            {"text": f"<b>{said}</b>", "xref": "paper", "x": 0, "xanchor": "left", "y": place + 0.1, "showarrow": False}
            for place, said in shape.headings
        ]
    return layout


def colours(results: Sequence[Result]) -> list[str]:
    """One colour a reader (of a machine), whatever its node count. results: as for `rows`."""
    readers = readers_of(results)
    known = list(dict.fromkeys(readers))
    return [COLOURS[known.index(name) % len(COLOURS)] for name in readers]


def dashes(results: Sequence[Result]) -> list[str]:
    """One kind of line for each node count."""
    nodes = sorted({result.plan.nodes for result in results})
    return [DASHES[nodes.index(result.plan.nodes) % len(DASHES)] for result in results]


def error_bars(values: Sequence[tuple[float | None, tuple[float, float] | None]]) -> Figure:
    """Intervals [low, high] of values as bars, for those that have one."""
    known = [(value, ends) if value is not None and ends is not None else None for value, ends in values]
    return {
        "type": "data", "symmetric": False, "color": INK, "thickness": 1.4, "width": 4,
        "array": [UNKNOWN if pair is None else max(0.0, pair[1][1] - pair[0]) for pair in known],
        "arrayminus": [UNKNOWN if pair is None else max(0.0, pair[0] - pair[1][0]) for pair in known],
    }  # fmt: skip


def centres(metrics: Sequence[Metric]) -> list[tuple[float | None, tuple[float, float] | None]]:
    """Values and intervals of metrics, for `error_bars`."""
    return [(metric.value, metric.ci) for metric in metrics]


def finish_figure(data: list[Figure], layout: Figure, words: str, results: Sequence[Result]) -> Figure:
    """The figure. words: what it shows, with its numbers, for those who cannot see it. A word lies across it when no
    result in it is a measurement.
    """
    if all(map(_invalid_word, results)):
        word = _invalid_word(results[0])
        mark = not_a_measurement(word, layout["height"])
        layout = layout | {"annotations": [*layout.get("annotations", []), mark]}
    return dict(round_floats({"data": data, "layout": layout, "words": words}))


def _invalid_word(result: Result) -> str:
    """Why the times of a result are no measurement, in a word; '' where they are one."""
    return next((word for word in ("INVALID", "TINY") if result.class_ == word or word in result.marks), "")
