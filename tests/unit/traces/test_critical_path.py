"""The critical path: by hand, and against ranks whose meetings are played on one clock."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio_bench.reports.document.types import Plan
from dlio_bench.reports.traces.trainers import critical_path, why_none


def steps_of(waits: Any, computes: Any, **more: Any) -> dict[str, Any]:
    """Steps of one trial whose ranks meet behind each: [ranks, steps] seconds of stall and compute, and checkpoints.

    passes: {step: seconds of each rank}; checkpoints: [ranks, steps].
    """
    stall, compute = np.asarray(waits, dtype=float), np.asarray(computes, dtype=float)
    saved = np.asarray(more.get("checkpoints", np.zeros_like(stall)), dtype=float)
    passes: dict[int, list[float]] = more.get("passes", {})
    ranks, count = stall.shape
    now = np.zeros(ranks)
    start, exchange = np.zeros_like(stall), np.zeros_like(stall)
    whole, busy = np.zeros((ranks, len(passes))), np.zeros((ranks, len(passes)))
    for step in range(count):
        start[:, step] = now
        came = now + stall[:, step] + compute[:, step]
        exchange[:, step] = came.max() - came
        now = np.full(ranks, came.max()) + saved[:, step]
        if step in passes:
            number = sorted(passes).index(step)
            busy[:, number] = passes[step]
            left = (now + busy[:, number]).max()
            whole[:, number] = left - now
            now = np.full(ranks, left)
    shape = (1, ranks, count)
    steps = {
        "stall": stall, "check": np.zeros(shape), "compute": compute, "exchange": exchange, "checkpoint": saved,
        "start": start,
    }  # fmt: skip
    steps = {name: np.asarray(values).reshape(shape) for name, values in steps.items()}
    steps |= {"loop": now[None], "epoch": np.arange(count)}
    if passes:
        steps |= {
            "validation": whole[None],
            "validation_stall": busy[None],
            "validation_busy": np.zeros_like(busy)[None],
        }
        steps["validation_epoch"] = np.array(sorted(passes))
    return steps


def test_each_step_is_that_of_the_rank_that_came_last() -> None:
    path = critical_path(steps_of(waits=[[1, 5], [3, 1]], computes=[[1, 1], [1, 2]]), 0)
    assert path.phases == pytest.approx({"stall": 3 + 5, "compute": 1 + 1, "exchange": 0})
    assert path.last == [1, 1]
    assert path.total == path.loop == 10


def test_a_checkpoint_and_a_pass_count_where_the_others_wait_for_them() -> None:
    """Rank 0 saves behind the first two steps; the pass behind the second takes rank 1 longer than both of rank 0."""
    steps = steps_of(
        waits=[[1, 1, 1], [1, 1, 2]], computes=[[1, 1, 1]] * 2, checkpoints=[[4, 3, 0], [0, 0, 0]], passes={1: [2, 7]}
    )
    path = critical_path(steps, 0)
    assert path.phases == pytest.approx(
        {"stall": 1 + 1 + 2, "compute": 3, "exchange": 0, "checkpoint": 4, "validation": 7}
    )
    assert path.last == [2, 1]
    assert path.total == path.loop == 18


durations = st.integers(0, 9)


@st.composite
def played(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    ranks, count = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    table = st.lists(st.lists(durations, min_size=count, max_size=count), min_size=ranks, max_size=ranks)
    return draw(table), draw(table)


@settings(deadline=None)
@given(played())
def test_against_ranks_played_on_one_clock(
    of: tuple[list[list[int]], list[list[int]]],
) -> None:
    """Who comes last on one clock is found from lengths of time alone; its parts add up to the loop."""
    waits, computes = of
    path = critical_path(steps_of(waits, computes), 0)
    stall = compute = 0
    last = [0] * len(waits)
    for step in range(len(waits[0])):
        came = [waits[rank][step] + computes[rank][step] for rank in range(len(waits))]
        rank = came.index(max(came))
        last[rank] += 1
        stall, compute = stall + waits[rank][step], compute + computes[rank][step]
    assert path.last == last
    assert path.phases == pytest.approx({"stall": stall, "compute": compute, "exchange": 0})
    assert path.total == pytest.approx(path.loop)


def test_no_path_where_ranks_do_not_meet(made: Any) -> None:
    def never(draft: dict[str, Any]) -> None:
        draft["plan"]["sync"] = "none"

    result, _ = made(change=never)
    plan: Plan = result.plan
    assert "--sync none" in str(why_none(plan))
    result, _ = made()
    assert why_none(result.plan) is None
