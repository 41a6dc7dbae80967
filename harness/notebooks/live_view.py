"""A live view of a run: what its `status.jsonl` says, as text and as curves, in widgets that follow it."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlio_bench.harness.live.status import ENDED, FAILED, SOURCES, read_status
from dlio_bench.harness.notebooks.figures import View
from dlio_bench.wrapping import printable

PAUSE = 1.0  # seconds between two looks: as often as a run writes
DRAWN_AGAIN = (2.0, 8.0, 30.0)  # seconds after the end: a browser that is still making the figure loses what comes then
PANELS = ("samples_per_second", "stall_share", "loss", "bytes")
TITLES = ("samples/s", "stall share", "loss", "bytes of the trial")
Record = Mapping[str, Any]


def curves(records: Sequence[Record]) -> dict[str, tuple[list[float], list[float]]]:
    """Name -> (seconds since the first record, values): the three numbers by name, and `bytes SOURCE` by source.

    A number that a record does not know is left out of its curve.
    """
    begin = records[0]["time"] if records else 0.0
    known: dict[str, list[tuple[float, float]]] = {name: [] for name in PANELS[:3]}
    known |= {f"bytes {source}": [] for source in SOURCES}
    for record in records:
        at = record["time"] - begin
        values = {name: record.get(name) for name in PANELS[:3]}
        values |= {f"bytes {source}": (record.get("bytes") or {}).get(source) for source in SOURCES}
        for name, value in values.items():
            if value is not None:
                known[name].append((at, value))
    return {name: ([at for at, _ in points], [value for _, value in points]) for name, points in known.items()}


def sentence(record: Record | None) -> str:
    """What the run does, in one line, from its latest record; None: nothing is there yet."""
    if record is None:
        return "no status yet"
    parts = [str(record["phase"])]
    if record.get("reader"):
        parts.append(f"{record['reader']} on {record['nodes'] or '?'} nodes")
    parts += [
        f"{name} {record[name]} of {record[of]}" if record.get(of) else f"{name} {record[name]}"
        for name, of in (("trial", "trials"), ("epoch", "epochs"), ("step", "steps"))
        if record.get(name) is not None
    ]
    if record.get("message"):
        parts.append(str(record["message"]))
    return printable(" · ".join(parts))


def progress(records: Sequence[Record]) -> float:
    """The share of the run that is over, by the latest record that knows it."""
    return next((float(record["progress"]) for record in reversed(records) if record.get("progress") is not None), 0.0)


class LiveView(View):
    """Widgets that follow the run in a folder until it ends.

    It may be opened before the folder is there, and after the run has ended. `records`: what it has read.
    """

    def __init__(self, folder: Path, pause: float = PAUSE) -> None:
        """Begin to follow. folder: that of the run's `--out`. pause: seconds between two looks."""
        import ipywidgets
        from plotly.graph_objects import FigureWidget
        from plotly.subplots import make_subplots

        self.folder = folder
        self.records: list[dict[str, Any]] = []
        self._lock, self._offset = threading.Lock(), 0
        label = ipywidgets.Label(sentence(None))
        self._bar = ipywidgets.FloatProgress(min=0, max=1, layout={"width": "100%"})
        figure = FigureWidget(make_subplots(rows=2, cols=2, subplot_titles=TITLES))
        for number, name in enumerate(curves([])):
            row, column = divmod(min(number, 3), 2)
            of_source, shown = name.removeprefix("bytes "), name.startswith("bytes ")
            place = {"row": row + 1, "col": column + 1}
            figure.add_scatter(x=[], y=[], mode="lines+markers", name=of_source, showlegend=shown, **place)
        figure.update_layout(template="plotly_white", height=420, margin={"t": 40, "b": 30})
        figure.update_xaxes(title_text="seconds", row=2)
        figure.update_yaxes(rangemode="tozero")
        super().__init__(ipywidgets.VBox([label, self._bar, figure]), figure, label, pause)

    @property
    def says(self) -> str:
        """What it shows above the curves."""
        return str(self._says.value)

    def is_over(self) -> bool:
        """Whether the run has ended."""
        return bool(self.records) and self.records[-1]["phase"] in ENDED

    def look(self) -> None:
        """Read what is new, and show it."""
        with suppress(FileNotFoundError):
            new, self._offset = read_status(self.folder, self._offset)
            self.records += new
            if new:
                self._show()

    stop = View.close

    def _show(self) -> None:
        latest = self.records[-1]
        self._says.value, self._bar.value = sentence(latest), progress(self.records)
        self._bar.bar_style = {FAILED: "danger"}.get(latest["phase"], "success" if latest["phase"] in ENDED else "info")
        self._draw(self.records)
        if latest["phase"] in ENDED:
            for seconds in DRAWN_AGAIN:
                timer = threading.Timer(seconds, self._draw_again)
                timer.daemon = True
                timer.start()

    def _draw(self, records: Sequence[Record]) -> None:
        with self._lock, self._figure.batch_update():
            for trace, (x, y) in zip(self._figure.data, curves(records).values(), strict=True):
                trace.x, trace.y = x, y

    def _draw_again(self) -> None:
        """Only what differs is sent to the browser, so nothing is drawn in between."""
        self._draw([])
        self._draw(self.records)
