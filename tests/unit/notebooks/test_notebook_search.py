"""A hyper-parameter search, its study and engines played by the test: nothing that befalls a trial ends it."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.notebooks.search import DONE, FAILED, LOST, RUNNING, STOPPED, Search, rows
from dlio_bench.harness.notebooks.search_view import table
from tests.processes import PATIENCE

GOOD = {"loss": [0.7, 0.5], "acc": [0.5, 0.8], "val_loss": [0.6, 0.6], "val_acc": [0.6, 0.75]}


class RemoteError(Exception):
    """As IPyParallel's: what failed on an engine, by name and text."""

    def __init__(self, ename: str, evalue: str) -> None:
        self.ename, self.evalue = ename, evalue


class Task:
    """One trial at work, until the test says what came of it."""

    def __init__(self) -> None:
        self.data: Any = {}
        self.outcome: Any = None

    def ready(self) -> bool:
        return self.outcome is not None

    def get(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Study:
    """Proposes x = 0, 1, 2, ..., and what was enqueued before that. told: number -> value or state."""

    def __init__(self) -> None:
        self.told: dict[int, Any] = {}
        self.queue: list[dict[str, Any]] = []
        self.asked = 0

    def enqueue_trial(self, parameters: dict[str, Any]) -> None:
        self.queue.append(parameters)

    def ask(self, distributions: dict[str, Any]) -> SimpleNamespace:
        assert distributions == {"x": "any"}
        self.asked += 1
        return SimpleNamespace(number=self.asked - 1, params=self.queue.pop(0) if self.queue else {"x": self.asked - 1})

    def tell(self, number: int, value: float | None = None, *, state: str | None = None) -> None:
        self.told[number] = value if state is None else state


class Cluster:
    """A view of engines, and the search on them."""

    def __init__(self, folder: Path, count: int, epochs: int | None = None) -> None:
        self.tasks: list[Task] = []
        self.parameters: list[Any] = []
        self.engines = 2
        self.study = Study()
        self.search = Search(
            self.study, self, lambda: self.engines, lambda _, __: GOOD, {"x": "any"},
            lambda number: folder / f"stop_{number}", ("pruned", "failed"), count=count, epochs=epochs,
        )  # fmt: skip

    def apply_async(self, function: Callable[..., Any], number: int, parameters: Any) -> Task:
        assert number == len(self.tasks)
        assert function(number, parameters) == GOOD
        self.tasks.append(Task())
        self.parameters.append(dict(parameters))
        return self.tasks[-1]

    def states(self) -> list[str]:
        self.search.step()
        return [trial.state for trial in self.search.trials]


def test_a_lost_engine_and_a_failed_trial_are_told_and_the_search_goes_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4)
    cluster.states()
    assert len(cluster.tasks) == 2
    cluster.tasks[0].data = {name: values[:1] for name, values in GOOD.items()}
    cluster.tasks[1].outcome = RemoteError("Diverged", "the loss is nan\x1b[2J")
    assert cluster.states()[:2] == [RUNNING, FAILED]
    cluster.tasks[0].outcome = RemoteError("EngineError", "Engine died")
    cluster.engines = 1
    assert cluster.states()[:3] == [LOST, FAILED, "waiting"]
    assert len(cluster.tasks) == 3, "one engine is left"
    cluster.tasks[2].outcome = GOOD
    cluster.states()
    cluster.tasks[3].outcome = GOOD | {"val_acc": [0.9, 0.7]}
    assert cluster.states() == [LOST, FAILED, DONE, DONE]
    assert cluster.search.over
    assert cluster.study.told == {0: "failed", 1: "failed", 2: 0.75, 3: 0.9}
    assert cluster.search.best is cluster.search.trials[3]
    lines = rows(cluster.search)
    assert [line["told"] for line in lines[:2]] == [
        "its engine has died", "Diverged: the loss is nan\N{REPLACEMENT CHARACTER}[2J"
    ]  # fmt: skip
    assert lines[0]["epochs"] == 1, "what a lost trial had published stays"


def test_a_trial_is_stopped_and_begins_again_with_its_parameters(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.states()
    with pytest.raises(UsageError, match="Trial 0 is not over"):
        cluster.search.restart(0)
    with pytest.raises(UsageError, match="no trial 7"):
        cluster.search.stop(7)
    cluster.search.stop(0)
    assert (tmp_path / "stop_0").exists()
    cluster.tasks[0].outcome = {name: values[:1] for name, values in GOOD.items()}
    cluster.tasks[1].outcome = GOOD
    assert cluster.states() == [STOPPED, DONE]
    assert cluster.study.told == {0: "pruned", 1: 0.75}
    cluster.search.stop(1)
    assert not (tmp_path / "stop_1").exists(), "it was over already"
    cluster.search.restart(0)
    assert not cluster.search.over
    cluster.states()
    assert cluster.parameters[2] == cluster.parameters[0]
    cluster.tasks[2].outcome = GOOD
    assert cluster.states() == [STOPPED, DONE, DONE]
    assert cluster.search.over
    assert rows(cluster.search)[2]["state"] == "done (again 0)"


def test_a_search_in_its_thread_ends_waits_for_engines_and_begins_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.engines = 0
    cluster.search.start()
    cluster.search.wait(lambda search: not search.trials, PATIENCE)
    cluster.engines = 1
    cluster.search.wait(lambda search: len(search.trials) == 1, PATIENCE)
    cluster.tasks[0].outcome = GOOD
    cluster.search.wait(seconds=PATIENCE)
    cluster.search.restart(0)
    cluster.search.wait(lambda search: len(search.trials) == 2, PATIENCE)
    cluster.tasks[1].outcome = GOOD
    cluster.search.wait(seconds=PATIENCE)
    cluster.search.leave()
    assert cluster.study.told == {0: 0.75, 1: 0.75}


def test_what_ends_a_search_is_raised_where_somebody_waits(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    cluster.search._study = None
    cluster.search.start()
    with pytest.raises(AttributeError):
        cluster.search.wait()


def test_a_search_is_not_over_while_a_trial_begins_again_or_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, 1)
    over: list[tuple[str, bool]] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*given: Any, **named: Any) -> Any:
            over.append((name, cluster.search.over))
            return call(*given, **named)

        return seen

    for holder, name in ((cluster.study, "ask"), (cluster, "apply_async"), (cluster.study, "tell")):
        monkeypatch.setattr(holder, name, watched(name, getattr(holder, name)))
    cluster.states()
    cluster.tasks[0].outcome = GOOD
    cluster.states()
    assert cluster.search.over
    cluster.search.restart(0)
    cluster.states()
    cluster.tasks[1].outcome = GOOD
    cluster.states()
    assert over == [(name, False) for name in ("ask", "apply_async", "tell")] * 2
    assert cluster.search.over


def test_restart_after_the_end_and_wait_waits_for_the_new_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, 1)
    begin = cluster.apply_async

    def over_soon(function: Callable[..., Any], number: int, parameters: Any) -> Task:
        time.sleep(0.05)  # wait() looks meanwhile
        task = begin(function, number, parameters)
        task.outcome = GOOD
        return task

    monkeypatch.setattr(cluster, "apply_async", over_soon)
    cluster.search.start()
    cluster.search.wait(seconds=PATIENCE)
    cluster.search.restart(0)
    cluster.search.wait(seconds=PATIENCE)
    assert [trial.state for trial in cluster.search.trials] == [DONE, DONE]
    cluster.search.leave()


@pytest.mark.parametrize("returned", [None, {"val_acc": 0.9}, {"acc": ["high"]}])
def test_a_train_without_a_history_fails_its_trial_alone(returned: Any, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.states()
    for task, outcome in zip(cluster.tasks, (returned, GOOD), strict=True):
        task.data = {"acc": [0.5], "val_acc": []}
        task.get = lambda outcome=outcome: outcome  # type: ignore[method-assign]
        task.outcome = GOOD  # it is ready
    assert cluster.states() == [FAILED, DONE]
    assert cluster.study.told == {0: "failed", 1: 0.75}
    first, _ = rows(cluster.search)
    assert "no history" in first["told"]
    assert (first["epochs"], first["val_acc"]) == (1, None)
    assert cluster.search.best is cluster.search.trials[1]


def test_a_trial_that_is_stopped_in_its_last_epoch_is_done(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2, epochs=2)
    cluster.states()
    cluster.search.stop(0, 1)
    cluster.tasks[0].outcome = GOOD
    cluster.tasks[1].outcome = {name: values[:1] for name, values in GOOD.items()}
    assert cluster.states() == [DONE, STOPPED]
    assert cluster.search.best is cluster.search.trials[0]


def test_the_table_shows_texts_as_they_are() -> None:
    shown = table([{"trial": 0, "state": "failed", "loss": 0.123456, "told": "<script>"}])
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "0.1235" in shown
