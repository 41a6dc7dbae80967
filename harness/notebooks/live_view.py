"""A live view of a run: what its `status.jsonl` says, as text and as curves, in widgets that follow it."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlio_bench.harness.live.status import ENDED, FAILED, SOURCES, read_status
from dlio_bench.harness.notebooks.figures import Beside
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


class LiveView:
    """Widgets that follow the run in a folder until it ends: show `view.box`, or let the view be a cell's last value.

    It may be opened before the folder is there, and after the run has ended. `records`: what it has read. `error`: what
    made it stop early, if something did.
    """

    def __init__(self, folder: Path, pause: float = PAUSE) -> None:
        """Begin to follow. folder: that of the run's `--out`. pause: seconds between two looks."""
        import ipywidgets
        from plotly.graph_objects import FigureWidget
        from plotly.subplots import make_subplots

        self.folder, self._pause = folder, pause
        self.records: list[dict[str, Any]] = []
        self._stop, self._lock = threading.Event(), threading.Lock()
        self.error: Exception | None = None
        self._shown: Beside | None = None
        self._offset = 0
        self._says = ipywidgets.Label(sentence(None))
        self._bar = ipywidgets.FloatProgress(min=0, max=1, layout={"width": "100%"})
        self._figure = FigureWidget(make_subplots(rows=2, cols=2, subplot_titles=TITLES))
        for number, name in enumerate(curves([])):
            row, column = divmod(min(number, 3), 2)
            label, shown = name.removeprefix("bytes "), name.startswith("bytes ")
            place = {"row": row + 1, "col": column + 1}
            self._figure.add_scatter(x=[], y=[], mode="lines+markers", name=label, showlegend=shown, **place)
        self._figure.update_layout(template="plotly_white", height=420, margin={"t": 40, "b": 30})
        self._figure.update_xaxes(title_text="seconds", row=2)
        self._figure.update_yaxes(rangemode="tozero")
        self.box = ipywidgets.VBox([self._says, self._bar, self._figure])
        self.look()
        self._thread = threading.Thread(target=self._follow, name="live-view", daemon=True)
        self._thread.start()

    @property
    def says(self) -> str:
        """What it shows above the curves."""
        return str(self._says.value)

    def look(self) -> None:
        """Read what is new, and show it."""
        with suppress(FileNotFoundError):
            new, self._offset = read_status(self.folder, self._offset)
            self.records += new
            if new:
                self._show()

    def stop(self) -> None:
        """Look once more, and follow no longer; what is shown stays."""
        self._stop.set()
        self._thread.join()
        self.look()
        if self._shown is not None:
            self._shown.update()

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

    def _follow(self) -> None:
        try:
            while not (self.records and self.records[-1]["phase"] in ENDED) and not self._stop.wait(self._pause):
                self.look()
        except Exception as error:  # noqa: BLE001 - told where the notebook looks for it
            self.error = error
            self._says.value = printable(f"the view stopped: {error}")

    def _ipython_display_(self) -> None:
        """Show the widgets where a cell ends with the view."""
        self._shown = Beside(self.box, self._figure)
