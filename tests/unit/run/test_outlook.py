"""What rank 0 tells of a trial at work, from the rows that its loop has filled so far."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dlio_bench.counters import Cost
from dlio_bench.harness.commands.run.measured.outlook import (
    MOST_STEPS,
    Rows,
    StatusObserver,
    Watched,
    by_source,
    finished_steps,
    rates,
    snapshot,
)
from dlio_bench.harness.readers.session import Tally
from tests.processes import until

STALL, WORK = 0.25, 0.75  # seconds of a step


def filled(done: int, steps: int, began: float = 100.0) -> Rows:
    """Rows of so many steps of a second each, the first `done` of them over."""
    rows = np.zeros((steps, 7))
    starts = began + np.arange(done, dtype=np.float64)
    rows[:done] = starts[:, None] + np.array([0, STALL, STALL, STALL, STALL, STALL + WORK, STALL + WORK])
    return rows


def watched(rows: Rows, per_epoch: int, passes: Any = (), *, demanded: bool = False) -> Watched:
    times = SimpleNamespace(log=SimpleNamespace(clock=rows), passes=passes, plan=[])
    samples = None if demanded else np.arange(len(rows) + 1) * 4
    return Watched(cast("Any", times), per_epoch, 4, samples)


def test_the_steps_that_are_over_are_those_whose_row_is_full() -> None:
    for done in (0, 1, 7, 8):
        rows = filled(done, 8)
        rows[done : done + 1, :2] = 200.0  # one at work
        assert finished_steps(rows) == done


def test_rates_are_of_the_last_seconds_and_a_long_step_counts_while_it_lasts() -> None:
    rows = filled(20, 30)
    assert rates(rows, 0, 20, 120.0) == (15, 5.0, 5 * STALL)  # the window
    assert rates(rows, 18, 20, 120.0) == (18, 2.0, 2 * STALL)  # the epoch has just begun
    assert rates(rows, 0, 20, 150.0) == (19, 1.0, STALL)  # between two loops: the last step
    rows[20, 0] = 120.0  # it waits for its data since
    assert rates(rows, 0, 20, 150.0) == (19, 31.0, STALL + 30.0)
    many = np.full((10_000, 7), 1.0)  # all of them at once
    assert rates(many, 0, 9_999, 0.0)[0] == 9_999 - MOST_STEPS


def test_a_trial_is_told_by_epoch_and_step() -> None:
    told = snapshot(watched(filled(6, 16), 8), 106.0)
    assert told == {
        "phase": None, "epoch": 1, "step": 6, "steps": 8, "share": 6 / 16, "samples_per_second": 4.0,
        "stall_share": STALL,
    }  # fmt: skip
    nothing = snapshot(watched(filled(0, 16), 8), 106.0)
    assert (nothing["epoch"], nothing["step"], nothing["samples_per_second"]) == (1, 0, None)
    between = snapshot(watched(filled(8, 16), 8), 108.0)
    assert (between["epoch"], between["step"]) == (1, 8)  # the next epoch has not begun
    rows = filled(8, 16)
    rows[8, 0] = 108.0
    assert (snapshot(watched(rows, 8), 108.1)["epoch"], snapshot(watched(rows, 8), 108.1)["step"]) == (2, 0)
    last = snapshot(watched(filled(16, 16), 8), 116.0)
    assert (last["epoch"], last["step"], last["share"]) == (2, 8, 1.0)


def test_a_validation_pass_is_a_phase_of_its_own() -> None:
    log = SimpleNamespace(clock=np.zeros((2, 7)))
    passes = [SimpleNamespace(epoch=0, log=log)]
    assert snapshot(watched(filled(8, 16), 8, passes), 108.0)["phase"] is None
    log.clock[0, 0] = 108.0
    told = snapshot(watched(filled(8, 16), 8, passes), 108.5)
    assert (told["phase"], told["samples_per_second"]) == ("validation", None)
    log.clock[:] = 109.0  # the pass is over
    told = snapshot(watched(filled(8, 16), 8, passes), 109.1)
    assert (told["phase"], told["step"], told["samples_per_second"]) == (None, 8, 4.0)


def test_where_ranks_get_batches_as_they_ask_only_those_they_got_count() -> None:
    rows = filled(8, 8)
    rows[6:] = rows[5, -1]  # there was none for these steps
    assert snapshot(watched(rows, 8, demanded=True), 106.0)["samples_per_second"] == pytest.approx(4.0)


def test_bytes_of_threads_at_work_count_once_before_and_after_they_are_added_up() -> None:
    tally = Tally()
    tally.of(0).bytes_requested = 10
    threads = [tally.part(), tally.part()]
    threads[0].of(1).bytes_ram = 5
    threads[1].part().of(1).bytes_local = 7
    assert by_source(tally.so_far()) == {"pfs": 10, "ram": 5, "local": 7, "remote": 0}
    for part in threads:
        tally.add(part)
    assert by_source(tally.so_far()) == {"pfs": 10, "ram": 5, "local": 7, "remote": 0}
    assert tally.epochs[1] == Cost(bytes_ram=5, bytes_local=7)
    assert tally.parts == []


def test_what_cannot_be_told_of_a_trial_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in its thread, which goes on to look, nor when the trial is over."""
    monkeypatch.setattr("dlio_bench.harness.commands.run.measured.outlook.EVERY", 0.01)
    asked: list[int] = []

    class Broken:
        @property
        def loss(self) -> float:
            asked.append(1)
            raise ZeroDivisionError

    times = SimpleNamespace(log=SimpleNamespace(clock=filled(2, 8)), passes=(), plan=[np.zeros((8, 4))])
    job = SimpleNamespace(readers={}, batch=4)
    trial = cast("Any", SimpleNamespace(times=times, trainer=Broken()))
    with StatusObserver(cast("Any", job), lambda _: None) as looking:
        looking.before_trial(trial)
        until(lambda: len(asked) > 2)
        looking.after_trial(trial)
