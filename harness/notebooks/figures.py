"""Figures of trainings: histories, the ROC curve, a classifier's outputs. In plotly's terms; `Drawn(figure)`
shows one."""

import base64
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.reports.view import static
from dlio_bench.reports.view.drawing import escape_markup
from dlio_bench.wrapping import printable

Figure = dict[str, Any]
Numbers = npt.NDArray[Any]
SHOWN_WIDTH = 560  # px, of an image in a notebook
BINS = 25  # of the histogram
COLOURS = ("#1f5a99", "#c2571a", "#3c8d5a", "#8a4fa3", "#b03a48", "#7a7a2c", "#2c7a7a", "#5b5b5b")


class Drawn:
    """A figure as a cell's last value: plotly draws it in Jupyter, an image shows it on GitHub, in HTML and in PDF.

    There is no HTML, which nbconvert and GitHub would take before the image, and show without its script as nothing.
    """

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        from plotly.graph_objects import Figure as Plotly

        shown = Plotly(self.figure).to_plotly_json()
        return {"application/vnd.plotly.v1+json": as_json(shown), **picture(self.figure)}, {
            "image/png": {"width": SHOWN_WIDTH}
        }


def as_json(figure: Any) -> Any:
    """A figure of plotly's as plain JSON."""
    from plotly.utils import PlotlyJSONEncoder

    return json.loads(json.dumps(figure, cls=PlotlyJSONEncoder))


def picture(figure: Figure) -> dict[str, str]:
    """A figure as an image, by its type; EnvironmentFailure without matplotlib."""
    return {"image/png": base64.b64encode(static.image(figure, "png")).decode()}


class Beside:
    """Widgets in a notebook, and in its file an image of their figure for what runs no widgets."""

    def __init__(self, box: Any, figure: Any) -> None:
        """Show them. figure: the FigureWidget among them."""
        from IPython.display import display

        self._box, self._figure = box, figure
        self._handle = display(*self._bundle(), raw=True, display_id=True)

    def update(self) -> None:
        """Take the image again, as the figure is now."""
        self._handle.update(self._bundle()[0], raw=True)

    def _bundle(self) -> list[dict[str, Any]]:
        return [self._box._repr_mimebundle_() | picture(as_json(self._figure.to_dict()))]


class View(ABC):
    """Widgets that a thread keeps up to date: let the view be a cell's last value, or show `view.box`.

    `error`: what made it stop early, if something did.
    """

    def __init__(self, box: Any, figure: Any, says: Any, pause: float) -> None:
        """Begin to follow. figure: the FigureWidget in the box; says: its label; pause: seconds between two looks."""
        self.box, self._figure, self._says, self._pause = box, figure, says, pause
        self.error: Exception | None = None
        self._ended = threading.Event()
        self._shown: Beside | None = None
        self.look()
        self._thread = threading.Thread(target=self._follow, name=type(self).__name__, daemon=True)
        self._thread.start()

    @abstractmethod
    def look(self) -> None:
        """Show what is new."""

    def is_over(self) -> bool:
        """Whether nothing new can come."""
        return False

    def close(self) -> None:
        """Look once more, and follow no longer; what is shown stays."""
        self._ended.set()
        self._thread.join()
        self.look()
        if self._shown is not None:
            self._shown.update()

    def _follow(self) -> None:
        try:
            while not self.is_over() and not self._ended.wait(self._pause):
                self.look()
        except Exception as error:  # noqa: BLE001 - told where the notebook looks for it
            self.error = error
            self._says.value = printable(f"the view stopped: {error}")

    def _ipython_display_(self) -> None:
        """Show the widgets where a cell ends with the view."""
        self._shown = Beside(self.box, self._figure)


def roc_points(labels: Numbers, scores: Numbers) -> tuple[Numbers, Numbers]:
    """(false positive rates, true positive rates), float64 [k], from (0, 0) to (1, 1), one point a distinct score.

    labels: 1 for signal. As defined in Fawcett, "An introduction to ROC analysis", Pattern Recognition Letters 27
    (2006). Rates of a class that has no sample are NaN.
    """
    order = np.argsort(-scores, kind="stable")
    signal, ordered = labels[order] == 1, scores[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)  # of the samples with the same score
    hits, misses = np.cumsum(signal)[last], np.cumsum(~signal)[last]
    with np.errstate(invalid="ignore"):
        return np.append(0, misses) / np.sum(~signal), np.append(0, hits) / np.sum(signal)


def area(labels: Numbers, scores: Numbers) -> float:
    """The area under the ROC curve, by trapezoids."""
    false, true = roc_points(labels, scores)
    return float(np.sum(np.diff(false) * (true[1:] + true[:-1]) / 2))


def roc(labels: Numbers, scores: Numbers) -> Figure:
    """True over false positive rate."""
    false, true = roc_points(labels, scores)
    curve = {"type": "scatter", "mode": "lines", "name": "classifier", "x": false.tolist(), "y": true.tolist()}
    chance = {"type": "scatter", "mode": "lines", "name": "chance", "x": [0, 1], "y": [0, 1], "line": {"dash": "dot"}}
    return {"data": [curve, chance], "layout": layout("true positive rate", "false positive rate")}


def outputs(labels: Numbers, scores: Numbers) -> Figure:
    """A histogram of what the classifier answers, for signal and for background."""
    bins = {"start": 0, "end": 1.0001, "size": 1 / BINS}
    bars = [
        {
            "type": "histogram",
            "name": name,
            "x": scores[labels == label].tolist(),
            "xbins": bins,
            "autobinx": False,
            "opacity": 0.6,
        }
        for label, name in ((0, "background"), (1, "signal"))
    ]
    return {"data": bars, "layout": layout("samples", "probability of signal") | {"barmode": "overlay"}}


def histories(of_ranks: Sequence[Mapping[str, Sequence[float]]]) -> Figure:
    """Loss and accuracy by epoch, of each rank's own samples, and of all ranks' validation samples."""
    return pair(
        {f"rank {rank}": history for rank, history in enumerate(of_ranks)}, ("loss", "acc"), ("val_loss", "val_acc")
    )


def pair(named: Mapping[str, Mapping[str, Sequence[float]]], solid: tuple[str, str], dashed: tuple[str, str]) -> Figure:
    """Two panels, losses and accuracies by epoch: one colour for each history, a solid and a dashed line."""
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": escape_markup(f"{name} {quantity}"),
            "legendgroup": escape_markup(name),
            "x": list(range(1, len(history[quantity]) + 1)),
            "y": list(history[quantity]),
            "line": {"color": COLOURS[number % len(COLOURS)], "dash": dash},
            "xaxis": f"x{panel}",
            "yaxis": f"y{panel}",
        }
        for number, (name, history) in enumerate(named.items())
        for names, dash in ((solid, "solid"), (dashed, "dot"))
        for panel, quantity in enumerate(names, start=1)
        if history.get(quantity)
    ]
    whole = {"title": {"text": "epoch"}, "dtick": 1}
    panels = {
        "xaxis": whole | {"domain": [0, 0.44]},
        "xaxis2": whole | {"domain": [0.56, 1], "anchor": "y2"},
        "yaxis": {"title": {"text": "loss"}},
        "yaxis2": {"title": {"text": "accuracy"}, "anchor": "x2"},
    }
    return {"data": lines, "layout": layout("", "") | panels}


def layout(y: str, x: str, note: str = "") -> Figure:
    """What all figures of the notebooks share."""
    return {
        "template": "plotly_white",
        "height": 340,
        "title": {"text": escape_markup(note), "font": {"size": 12}},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "margin": {"t": 40, "b": 50},
    }
