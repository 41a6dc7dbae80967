"""A live view of a hyper-parameter search: table and curves, and buttons that stop and restart trials."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlio_bench.errors import BenchError
from dlio_bench.harness.notebooks.figures import COLOURS, View
from dlio_bench.harness.notebooks.network import TRIALS, distributions
from dlio_bench.harness.notebooks.search import FAILED, LOST, Search, Trial, rows

PAUSE = 0.5  # seconds between two looks
GRAVE = (FAILED, LOST)
CURVES = ("val_loss", "val_acc")


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The rows of a search as an HTML table; every text is escaped."""
    if not lines:
        return "<p>no trial yet</p>"
    head = _row("th", lines[0], "")
    return f"<table>{head}{''.join(_row('td', line.values(), str(line['state'])) for line in lines)}</table>"


def _row(tag: str, cells: Iterable[Any], state: str) -> str:
    style = ' style="color:#b03a48"' if state.startswith(GRAVE) else ""
    return f"<tr{style}>" + "".join(f"<{tag}>{html.escape(_cell(cell))}</{tag}>" for cell in cells) + "</tr>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def curves(trials: Sequence[Trial], name: str) -> tuple[list[float | None], list[float | None], list[str], list[str]]:
    """(epochs, values, names of trials, colours) of all trials in one line, which None interrupts behind each."""
    x: list[float | None] = []
    y: list[float | None] = []
    names: list[str] = []
    colours: list[str] = []
    for trial in trials:
        values = trial.history.get(name, [])
        x += [*map(float, range(1, len(values) + 1)), None]
        y += [*values, None]
        names += [f"trial {trial.number}"] * (len(values) + 1)
        colours += [COLOURS[trial.number % len(COLOURS)]] * (len(values) + 1)
    return x, y, names, colours


def optuna_search(
    client: Any, train: Any, wish: Any, *, count: int = TRIALS, seed: int = 0, epochs: int | None = None
) -> Search:
    """A search over the published ranges by Optuna's TPE sampler, on a load-balanced view; see Search."""
    import optuna
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    states = (TrialState.PRUNED, TrialState.FAIL)
    view = client.load_balanced_view()
    return Search(
        study, view, lambda: len(client.ids), train, distributions(), wish, states, count=count, epochs=epochs
    )


class SearchView(View):
    """Widgets that follow a search: its table, its curves, and buttons that stop and restart trials."""

    def __init__(self, search: Search, pause: float = PAUSE) -> None:
        """Begin to follow."""
        import ipywidgets
        from plotly.graph_objects import FigureWidget
        from plotly.subplots import make_subplots

        self._search = search
        self._table, says = ipywidgets.HTML(), ipywidgets.Label()
        self._chosen = ipywidgets.SelectMultiple(description="trials", rows=4)
        stop = ipywidgets.Button(description="Stop selected")
        restart = ipywidgets.Button(description="Restart selected")
        stop.on_click(lambda _: self._act(search.stop))
        restart.on_click(lambda _: self._act(search.restart))
        figure = FigureWidget(make_subplots(rows=1, cols=2, subplot_titles=CURVES))
        for column in (1, 2):  # JupyterLab does not draw traces that come later
            line = {"color": "#cccccc"}
            figure.add_scatter(x=[], y=[], mode="lines+markers", line=line, showlegend=False, row=1, col=column)
        figure.update_layout(template="plotly_white", height=320, margin={"t": 40, "b": 30})
        box = ipywidgets.VBox([self._table, ipywidgets.HBox([self._chosen, stop, restart, says]), figure])
        super().__init__(box, figure, says, pause)

    def look(self) -> None:
        """Show how the search stands."""
        self._table.value = table(rows(self._search))
        trials = list(self._search.trials)
        numbers = tuple(trial.number for trial in trials)
        if self._chosen.options != numbers:
            kept = self._chosen.value
            self._chosen.options = numbers
            self._chosen.value = kept
        with self._figure.batch_update():
            for trace, name in zip(self._figure.data, CURVES, strict=True):
                trace.x, trace.y, trace.text, trace.marker.color = curves(trials, name)

    def _act(self, what: Any) -> None:
        try:
            what(*self._chosen.value)
            self._says.value = ""
        except BenchError as error:
            self._says.value = str(error)
