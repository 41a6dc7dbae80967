"""A hyper-parameter search: Optuna proposes trials, engines run them, and whatever becomes of one, the search goes on.

Nothing here imports Optuna or IPyParallel: a study and a view are given.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from dlio_bench.errors import UsageError
from dlio_bench.wrapping import printable

WAITING, RUNNING, DONE, STOPPED, FAILED, LOST = "waiting", "running", "done", "stopped", "failed", "lost"
OVER = (DONE, STOPPED, FAILED, LOST)
LOOK = 0.2  # seconds between two looks at the trials
LONGEST = 200  # letters of a failure in the table
GONE = "EngineError"  # how IPyParallel calls the end of an engine
NAMES = ("loss", "acc", "val_loss", "val_acc")  # of a history, in the table
History = dict[str, list[float]]


class Task(Protocol):
    """A trial on its way: IPyParallel's AsyncResult."""

    @property
    def data(self) -> Any:
        """What it has published last."""
        ...

    def ready(self) -> bool:
        """Whether it is over."""
        ...

    def get(self) -> Any:
        """What came of it, or the error that ended it."""
        ...


@dataclass
class Trial:
    """One trial. state: of OVER, or WAITING or RUNNING. told: why it failed. again: the trial that it repeats."""

    number: int
    parameters: Mapping[str, Any]
    state: str = WAITING
    history: History = field(default_factory=dict)
    told: str = ""
    again: int | None = None

    @property
    def best(self) -> float | None:
        """The best `val_acc` of its epochs, by which the search selects."""
        return max(self.history.get("val_acc", []), default=None)


class Search:
    """As many trials at a time as there are engines, `count` in all, besides those that are restarted.

    study: Optuna's, which maximises (ask, tell, enqueue_trial). view: begins a trial (apply_async). engines: how many
    there are now. train: (number, parameters) -> history, on an engine. wish: the file that asks a trial of that number
    to stop. states: Optuna's for trials without a value, as (pruned, failed). epochs: of a trial, so that one that was
    asked to stop in its last epoch is done; None: unknown, and it is stopped. One thread uses study and view: `start`
    begins it.
    """

    def __init__(
        self,
        study: Any,
        view: Any,
        engines: Callable[[], int],
        train: Callable[[int, Mapping[str, Any]], History],
        distributions: Mapping[str, Any],
        wish: Callable[[int], Path],
        states: tuple[Any, Any],
        *,
        count: int,
        epochs: int | None = None,
    ) -> None:
        self._study, self._view, self._engines, self._train = study, view, engines, train
        self._distributions, self._wish, self._count = distributions, wish, count
        self._epochs = epochs
        self._pruned, self._failed = states
        self.trials: list[Trial] = []
        self._tasks: dict[int, Task] = {}  # of trials that are not over
        self._again: list[int] = []  # to be repeated
        self._lock, self._changed = threading.Lock(), threading.Condition()
        self._left = threading.Event()
        self._ended = False  # its thread, as all trials were over
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether all trials are over."""
        # in this order: a trial that is begun is among the tasks before it is counted, or no longer to be repeated
        return self._proposed_count >= self._count and not self._again and not self._tasks

    @property
    def _proposed_count(self) -> int:
        return len([trial for trial in self.trials if trial.again is None])

    @property
    def best(self) -> Trial | None:
        """The trial with the best `val_acc` of those that ended well; None where none has."""
        done = [each for each in self.trials if each.state == DONE and each.best is not None]
        return max(done, key=lambda each: each.best or 0.0, default=None)

    def stop(self, *numbers: int) -> None:
        """Ask trials to stop: one that runs does so after its epoch, one that waits before it. UsageError."""
        for number in numbers:
            if self._trial(number).state not in OVER:
                self._wish(number).touch()

    def restart(self, *numbers: int) -> None:
        """Run the parameters of trials that are over again, from the beginning, as new trials. UsageError."""
        for number in numbers:
            if self._trial(number).state not in OVER:
                raise UsageError(f"Trial {number} is not over. Stop it first, with stop({number}).")
            with self._lock:
                self._again.append(number)
                ended, self._ended = self._ended, False
            if ended:
                self.start()

    def step(self) -> None:
        """Look at all trials on their way; tell the study what became of them, and ask it for others."""
        for number, task in list(self._tasks.items()):
            self._look(self.trials[number], task)
        while len(self._tasks) < self._engines() and self._begin():
            pass
        with self._changed:
            self._changed.notify_all()

    def start(self) -> None:
        """Run the search in a thread of its own, until all trials are over or it is left."""
        self._left.clear()
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    def wait(self, until: Callable[["Search"], object] = lambda search: search.over, seconds: float = 3600.0) -> None:
        """Wait until `until` holds of the search, by default until all trials are over.

        TimeoutError after so many seconds; what ended the search, if something did.
        """
        with self._changed:
            held = self._changed.wait_for(lambda: self.error or until(self), seconds)
        if self.error:
            raise self.error
        if not held:
            raise TimeoutError(f"the search has not come there within {seconds:g} s")

    def leave(self) -> None:
        """Begin no more trials and look no more; engines finish what they have begun."""
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._left.is_set():
                self.step()
                with self._lock:
                    self._ended = self.over
                if self._ended:
                    break
                time.sleep(LOOK)
        except Exception as error:  # noqa: BLE001 - raised where somebody waits
            self.error = error
        with self._changed:
            self._changed.notify_all()

    def _trial(self, number: int) -> Trial:
        if not 0 <= number < len(self.trials):
            raise UsageError(f"There is no trial {number}: the search has begun {len(self.trials)}.")
        return self.trials[number]

    def _begin(self) -> bool:
        """Begin one trial; False where none is left to begin."""
        again = self._again[0] if self._again else None
        if again is None and self._proposed_count >= self._count:
            return False
        if again is not None:
            self._study.enqueue_trial(dict(self.trials[again].parameters))
        asked = self._study.ask(dict(self._distributions))
        trial = Trial(asked.number, dict(asked.params), again=again)
        self._wish(trial.number).unlink(missing_ok=True)
        self._tasks[trial.number] = self._view.apply_async(self._train, trial.number, trial.parameters)
        self.trials.append(trial)
        if again is not None:
            del self._again[0]
        return True

    def _look(self, trial: Trial, task: Task) -> None:
        published = task.data
        if _is_history(published) and published.get("acc"):
            trial.history, trial.state = published, RUNNING
        if not task.ready():
            return
        try:
            trial.history = _check_history(task.get())
            trial.state = STOPPED if self._wish(trial.number).exists() and not self._whole(trial.history) else DONE
        except Exception as error:  # noqa: BLE001 - whatever ended a trial, the others go on
            name = str(getattr(error, "ename", type(error).__name__))
            trial.state = LOST if name == GONE else FAILED
            why = "its engine has died" if trial.state == LOST else f"{name}: {getattr(error, 'evalue', error)}"
            trial.told = printable(why)[:LONGEST]
        self._report_outcome(trial)
        del self._tasks[trial.number]  # last: now the search may be over

    def _whole(self, history: History) -> bool:
        return self._epochs is not None and len(history.get("acc", [])) >= self._epochs

    def _report_outcome(self, trial: Trial) -> None:
        if trial.state == DONE and trial.best is not None:
            self._study.tell(trial.number, trial.best)
        else:
            self._study.tell(trial.number, state=self._pruned if trial.state == STOPPED else self._failed)


def _check_history(returned: Any) -> History:
    if not _is_history(returned):
        raise TypeError("train returned no history: lists of numbers by name")
    history: History = returned
    return history


def _is_history(given: object) -> bool:
    """Whether it is a mapping by name, in which the table's names have lists of numbers."""
    return isinstance(given, dict) and all(
        isinstance(given.get(name, []), list) and all(isinstance(value, Real) for value in given.get(name, []))
        for name in NAMES
    )


def _latest(history: History, name: str) -> float | None:
    values = history.get(name)
    return values[-1] if values else None


def rows(search: Search) -> list[dict[str, Any]]:
    """A row of the table for each trial: state, epochs, numbers of its latest epoch, parameters, what went wrong."""
    return [
        {
            "trial": trial.number,
            "state": trial.state if trial.again is None else f"{trial.state} (again {trial.again})",
            "epochs": len(trial.history.get("acc", [])),
            **{name: _latest(trial.history, name) for name in NAMES},
            **trial.parameters,
            "told": trial.told,
        }
        for trial in list(search.trials)
    ]
