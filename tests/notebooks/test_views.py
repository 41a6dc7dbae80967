"""The live views' widgets, without a browser: what they show, and what their buttons do."""

from pathlib import Path

from dlio_bench.harness.live import status
from dlio_bench.harness.notebooks.live_view import LiveView
from dlio_bench.harness.notebooks.search_view import SearchView
from tests.processes import until
from tests.unit.notebooks.test_notebook_search import GOOD, Cluster


def test_the_buttons_of_a_search_stop_and_restart_what_is_selected(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.states()
    view = SearchView(cluster.search)
    table, controls, figure = view.box.children
    trials, stop, restart, says = controls.children
    assert trials.options == (0, 1)
    trials.value = (1,)
    restart.click()
    assert says.value.startswith("Trial 1 is not over")
    stop.click()
    assert says.value == ""
    assert [path.name for path in tmp_path.iterdir()] == ["stop_1"]
    cluster.tasks[0].outcome = cluster.tasks[1].outcome = GOOD
    cluster.states()
    restart.click()
    cluster.states()
    view.close()
    assert trials.options == (0, 1, 2)
    assert trials.value == (1,), "a selection stays"
    assert "waiting (again 1)" in table.value
    for trace, name in zip(figure.data, ("val_loss", "val_acc"), strict=True):
        assert [value for value in trace.y if value is not None] == GOOD[name] * 2, "of both trials, with gaps between"
        assert list(trace.text) == ["trial 0"] * 3 + ["trial 1"] * 3 + ["trial 2"]


def test_an_error_of_the_view_of_a_search_is_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    view = SearchView(cluster.search, pause=0.01)
    cluster.search.trials = None  # type: ignore[assignment]
    until(lambda: view.error is not None)
    assert isinstance(view.error, TypeError)
    assert view.box.children[1].children[3].value.startswith("the view stopped: ")


def test_a_view_follows_a_run_until_it_has_failed(tmp_path: Path) -> None:
    view = LiveView(tmp_path, pause=0.01)
    says, bar, figure = view.box.children
    assert says.value == "no status yet"
    status.append(tmp_path, status.record(status.TIMED, loss=0.5, progress=0.25, step=3, steps=8))
    until(lambda: bar.value == 0.25)
    assert says.value == "timed · step 3 of 8"
    assert list(figure.data[2].y) == [0.5]
    status.append(tmp_path, status.record(status.FAILED, message="a rank died"))
    until(lambda: bar.bar_style == "danger")
    assert says.value == "failed · a rank died"
    view.stop()
    assert view.error is None
    assert len(view.records) == 2
