"""Metrics against numbers worked out by hand, their shares, and their confidence intervals."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dlio_bench.reports.document.types import Draft, Metric
from dlio_bench.reports.numbers import intervals, statistics
from dlio_bench.reports.numbers.metrics import METRICS, PHASES, SHARES
from tests.results import drafted
from tests.unit.conftest import draft_of_reader, trial_of

DRAFT = draft_of_reader("prefetch", 2, 3)
TRIAL = trial_of(1, 1.0, 2) | {"host_cpu_busy_share": None}
EPOCH = TRIAL["epochs"][0]
TRAINING = {"loss": [1.0], "final_loss": 1.0}


def trial(
    elapsed: float, *, warmup: bool = False, epochs: tuple[float, ...] = (1.0,), actual: float = 8.0
) -> dict[str, Any]:
    return TRIAL | {
        "warmup": warmup, "elapsed_seconds": elapsed, "samples": 120, "bytes_requested": 2400, "bytes_useful": 1200,
        "epochs": [EPOCH | {"seconds": seconds, "bytes_requested": 2400, "bytes_device": 1800} for seconds in epochs],
        "compute_asked_seconds": 8.0,
        "compute_actual_seconds": actual, "bytes_device": 1800,
    }  # fmt: skip


def steps_of(trials: int) -> dict[str, Any]:
    """Two ranks of two steps; the warm-up trial, the first, is absurd so that counting it would show."""
    one = {
        "stall": [[1.0, 0.0], [0.0, 2.0]],
        "check": [[0.5, 0.5], [0.5, 0.5]],
        "compute": [[2.0, 2.0], [1.5, 2.5]],
        "exchange": [[0.0, 2.5], [1.5, 0.0]],  # both ranks leave steps after 3.5 and 8.5 s
        "start": [[0.0, 3.5], [0.0, 3.5]],
    }
    steps: dict[str, Any] = {name: np.array([values] * trials) for name, values in one.items()}
    for name in one:
        steps[name][0] *= 1000
    return steps | {"loop": np.full((trials, 2), 10.0), "epoch": np.array([0, 0])}


def measured_of(steps: dict[str, Any]) -> dict[str, Any]:
    """Without the warm-up trial."""
    return {name: values if name == "epoch" else values[1:] for name, values in steps.items()}


def draft_of(parts: dict[str, Any]) -> Draft:
    """A draft whose plan, compute and trials are as told, and whose other parts are anybody's."""
    draft = DRAFT | {"trials": parts["trials"]}
    for name in ("plan", "compute"):
        draft[name] = DRAFT[name] | parts.get(name, {})
    return drafted(draft)


def metrics_of(parts: dict[str, Any], steps: dict[str, Any]) -> dict[str, Metric]:
    return statistics.metrics(draft_of(parts), steps)


def metrics_in(
    trials: list[dict[str, Any]], steps: dict[str, Any], *, sync: str = "step", mode: str = "emulate", **plan: str
) -> dict[str, Metric]:
    """Of trials whose ranks meet at every step, computing by emulation."""
    return metrics_of({"plan": {"sync": sync} | plan, "trials": trials, "compute": {"mode": mode}}, steps)


def value(metrics: dict[str, Metric], name: str) -> float:
    found = metrics[name].value
    assert found is not None
    return found


def by_hand(mode: str = "emulate") -> dict[str, Metric]:
    trials = [
        trial(1e6, warmup=True),
        trial(10.0, epochs=(6.0, 4.0), actual=8.4),
        trial(12.0, epochs=(7.0, 4.0), actual=8.8),
    ]
    return metrics_in(trials, steps_of(3), mode=mode)


def test_ranks_that_do_not_meet_are_bound_by_the_slowest_of_the_whole_loop() -> None:
    steps = measured_of(steps_of(2))
    steps["exchange"] *= 0
    steps["start"] = np.array([[[0.0, 3.5], [0.0, 2.0]]])
    found = metrics_in([trial(10.0)], steps, sync="none")
    # rank 0: 2.0 + 2.0 of compute and 1.0 of check; rank 1: 1.5 + 2.5 and 1.0
    assert value(found, "no_io_seconds") == 5.0
    # rank 1 takes 7 s in all, and would take 5 s with its data in memory
    assert value(found, "stall_share") == pytest.approx(0.2)
    # the trial takes 7 s; rank 0 is in its first step for 3.5 of them, rank 1 for 2
    assert value(found, "au") == pytest.approx((2.0 / 3.5 + 2.5 / 5.0) / 2)


def test_ranks_that_meet_at_epochs_wait_for_the_slowest_of_each() -> None:
    """Of three epochs of one step each; each rank stalls in another one."""
    stall = np.array([[[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]])
    steps = {"stall": stall, "check": 0 * stall, "compute": stall * 0 + 1.0, "exchange": 0 * stall}
    steps |= {"start": np.array([[[0.0, 2.0, 5.0]] * 2]), "epoch": np.arange(3), "loop": np.full((1, 2), 6.0)}

    def stalled(sync: str, cache: str = "first-epoch-cold") -> float:
        found = metrics_in([trial(6.0, epochs=(2, 3, 1))], steps, sync=sync, cache=cache)
        assert found["au"].value is found["steady_au"].value is None  # no epoch has a second step
        return 6.0 * value(found, "stall_share")

    assert stalled("step") == stalled("epoch") == stalled("none", "cold-epochs") == pytest.approx(3.0)
    assert stalled("none") == pytest.approx(2.0)
    steps["validation_epoch"] = np.array([0])  # all meet behind its pass
    assert stalled("none") == pytest.approx(3.0)


def log(stall: Any, compute: float = 1.0, epochs: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """The draft and the steps of one trial, ranks meeting at every step, with these seconds in get [ranks, steps]."""
    stall = np.array([stall], dtype=np.float64)
    work = np.full(stall.shape, compute)
    whole = (stall + work).max(axis=1, keepdims=True)
    steps = {"stall": stall, "check": 0 * stall, "compute": work, "exchange": whole - stall - work}
    steps["start"] = np.broadcast_to(np.cumsum(whole, axis=2) - whole, stall.shape)
    steps |= {"loop": np.full(stall.shape[:2], whole.sum())}
    steps |= {"epoch": np.repeat(np.arange(epochs), stall.shape[2] // epochs)}
    draft = {"plan": {"sync": "step"}, "compute": {"mode": "emulate"}}
    return draft | {"trials": [trial(float(whole.sum()), epochs=(1.0,) * epochs)]}, steps


def test_waiting_in_turns_costs_the_job_what_it_costs() -> None:
    """Ranks that stall in turns take longer than ranks that stall together for less: AU has to say so, which
    compute / (compute + own stall) does not."""
    in_turns = log([[0.5, 1, 0, 1, 0], [0.5, 0, 1, 0, 1]])
    together = log([[0.5, 0.8, 0.8, 0.8, 0.8]] * 2)
    turns, both = (metrics_of(*made) for made in (in_turns, together))
    assert value(turns, "elapsed_seconds") == pytest.approx(9.5)
    assert value(both, "elapsed_seconds") == pytest.approx(8.7)
    old = [(5 / (5 + steps["stall"].sum(axis=2))).mean() for _, steps in (in_turns, together)]
    assert old[0] > old[1]
    assert value(turns, "au") == pytest.approx(4 / 8)
    assert value(both, "au") == pytest.approx(4 / 7.2)
    assert value(turns, "stall_share") == pytest.approx(4.5 / 9.5)
    assert value(both, "stall_share") == pytest.approx(3.7 / 8.7)
    assert value(turns, "own_stall_share") == pytest.approx(2.5 / 9.5)


def test_a_fast_epoch_does_not_make_up_for_a_slow_one() -> None:
    """A plain mean of the epochs' AU, as DLIO takes it, has the first reader before the second."""
    slower = metrics_of(*log([[0, 0, 0, 2.2]] * 2, epochs=2))  # AU of the epochs: 1 and 1 / 3.2
    faster = metrics_of(*log([[0, 1, 0, 1]] * 2, epochs=2))  # 1 / 2 each
    assert value(slower, "elapsed_seconds") > value(faster, "elapsed_seconds")
    assert value(slower, "au") == pytest.approx(2 / 4.2)
    assert value(faster, "au") == pytest.approx(2 / 4)
    assert value(slower, "steady_au") == pytest.approx(1 / 3.2)
    assert value(slower, "steady_stall_share") == pytest.approx(2.2 / 4.2)
    assert value(faster, "steady_stall_share") == pytest.approx(1 / 3)


@settings(max_examples=50, deadline=None)
@given(
    stalls=arrays(np.float64, (2, 3, 6), elements=st.floats(0, 1e3)),
    first=arrays(np.float64, (3,), elements=st.floats(0, 1e3)),
)
def test_on_equal_work_with_equal_first_steps_the_faster_reader_has_the_higher_au(stalls: Any, first: Any) -> None:
    stalls[:, :, [0, 3]] = first[None, :, None]  # of both epochs
    one, other = (metrics_of(*log(stall, epochs=2)) for stall in stalls)
    longer = value(one, "elapsed_seconds") - value(other, "elapsed_seconds")
    higher = value(one, "au") - value(other, "au")
    assert longer * higher <= 1e-9


def test_bytes_from_the_device_are_unknown_when_one_trial_does_not_know_them() -> None:
    trials = [trial(10.0), trial(10.0) | {"bytes_device": None}]
    assert metrics_in(trials, measured_of(steps_of(3)))["bytes_device"].value is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("elapsed_seconds", 11.0),
        ("epoch_seconds", 5.25),  # medians 5 and 5.5 of the trials
        ("samples_per_second", 11.0),  # 12 and 10
        ("pfs_bandwidth", 3600 * (1 / 10 + 1 / 11) / 2),
        ("delivered_bandwidth", 110.0),
        ("stall_share", (3 / 10 + 3 / 12) / 2),  # steps of 3.5 and 5 s take 2.5 and 3 s with data in memory
        ("own_stall_share", (1.5 / 10 + 1.5 / 12) / 2),  # ranks wait 1 and 2 s
        ("own_stall_share_worst_rank", (2 / 10 + 2 / 12) / 2),
        ("au", (2.0 / 5.0 + 2.5 / 5.0) / 2),  # the second step alone, the wait for the other rank in
        ("step_p50", 4.25),  # the slowest rank's steps cost 3.5 and 5.0
        ("step_p95", 4.925),
        ("step_p99", 4.985),
        ("no_io_seconds", 5.5),  # 2.5 of the first rank and 3.0 of the second
        ("over_bound", 2.0),  # 10 / 5.5 and 12 / 5.5
        ("first_epoch_seconds", 6.5),
        ("later_epochs_seconds", 4.0),
        ("bytes_requested", 2400.0),
        ("bytes_device", 1800.0),
        ("compute_overrun", 0.075),  # 0.05 and 0.10
        ("share_stall", 0.15),
        ("share_check", 0.1),
        ("share_compute", 0.4),
        ("share_exchange", 0.2),
        ("share_validation", 0.0),
        ("share_other", 0.15),
    ],
)
def test_metric_is_what_the_hand_gives(name: str, expected: float) -> None:
    assert value(by_hand(), name) == pytest.approx(expected)


def validated() -> dict[str, Metric]:
    """The second rank waits for data in both passes; the first waits for it at their ends."""
    steps = steps_of(2) | {
        "validation": np.array([[[1.0, 1.0], [1.0, 1.0]]] * 2),
        "validation_stall": np.array([[[0.0, 0.0], [0.5, 0.75]]] * 2),
        "validation_busy": np.array([[[0.25, 0.25], [0.5, 0.25]]] * 2),
        "validation_epoch": np.array([0, 1]),
        "loop": np.full((2, 2), 11.0),
    }
    trials = [trial(1e6, warmup=True), trial(11.0, epochs=(5.0, 3.0), actual=8.4)]
    return metrics_in(trials, steps)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("validation_seconds", 1.0),
        ("validation_stall_share", (0 + 1.25 / 2) / 2),
        ("share_validation", 2 / 11),
        # training: as without passes, but of what they leave
        ("stall_share", 3 / 9),
        ("own_stall_share", (1 / 9 + 2 / 9) / 2),
        ("share_stall", 1.5 / 11),
        ("share_other", 0.5 / 11),
        ("au", (2.0 / 5.0 + 2.5 / 5.0) / 2),
        ("epoch_seconds", 4.0),
        ("samples_per_second", 120 / 9),
        ("step_p50", 4.25),
        # the whole: with them
        ("no_io_seconds", 5.5 + 0.5 + 0.25),
        ("pfs_bandwidth", 2 * 1800 / (5 + 3)),
        ("elapsed_seconds", 11.0),
    ],
)
def test_what_validation_passes_are_in_and_what_they_are_not_in(name: str, expected: float) -> None:
    assert value(validated(), name) == pytest.approx(expected)


@pytest.mark.parametrize(("sync", "expected"), [("step", True), ("none", True), ("epoch", False)])
def test_the_harness_adds_checks_barriers_and_what_is_in_no_phase(sync: str, expected: bool) -> None:
    steps = {name: values[1:2] for name, values in steps_of(2).items()}
    steps["barrier"] = 0.01 * steps["loop"] * [[1, 3]]  # mean of the ranks 2 %
    found = metrics_in([trial(10.0)], steps, sync=sync)
    rest = value(found, "share_check") + value(found, "share_other")
    assert rest > 0
    # of ranks that meet once an epoch nobody knows how long they waited for each other
    assert found["harness_share"].value == (pytest.approx(0.02 + rest) if expected else None)


def test_every_metric_has_its_unit_and_no_other_is_there() -> None:
    assert {name: metric.unit for name, metric in by_hand().items()} == {
        name: quantity.unit for name, quantity in METRICS.items()
    }


def test_without_compute_its_metrics_are_null() -> None:
    metrics = by_hand("none")
    # a steady stall share is of later epochs; bytes_client_cache is of an emulation
    assert [name for name, metric in metrics.items() if metric.value is None] == [
        "steady_stall_share", "au", "mlperf_au", "steady_au", "harness_share", "over_bound", "allreduce_seconds",
        "compute_overrun", "validation_seconds", "validation_stall_share", "bytes_client_cache",
    ]  # fmt: skip


def test_all_reduces_of_trainings_are_a_total_of_their_own() -> None:
    def found(training: dict[str, Any] | None) -> Any:
        trials = [trial(10.0) | ({} if training is None else {"training": training})] * 2
        return metrics_in(trials, steps_of(2), mode="train")["allreduce_seconds"].value

    assert found(TRAINING | {"allreduce_seconds": 2.5, "allreduce_bytes": 100}) == 2.5
    assert found(TRAINING | {"allreduce_seconds": 0.0, "allreduce_bytes": 0}) is None  # one rank exchanges nothing
    assert found(None) is None


@settings(max_examples=50, deadline=None)
@given(
    times=arrays(np.float64, (6, 3, 2, 5), elements=st.floats(0, 1e3)),
    passes=arrays(np.float64, (3, 2, 2), elements=st.floats(1e-3, 1e3)),
    rest=arrays(np.float64, (3, 2), elements=st.floats(1e-3, 1e3)),
)
def test_shares_of_time_sum_to_one(times: Any, passes: Any, rest: Any) -> None:
    steps = dict(zip(PHASES, times, strict=True))
    steps |= {"validation": passes, "validation_stall": passes / 2, "validation_busy": passes / 4}
    steps["loop"] = times.sum(axis=(0, 3)) + passes.sum(axis=2) + rest
    steps |= {"start": np.cumsum(times.sum(axis=0), axis=2), "epoch": np.zeros(5, dtype=np.int64)}
    steps |= {"validation_epoch": np.arange(2)}
    metrics = metrics_in([trial(1e5)] * 3, steps, mode="none")
    shares = [value(metrics, name) for name in SHARES]
    assert sum(shares) == pytest.approx(1.0)
    assert all(-1e-9 <= share <= 1 for share in shares)


def ci_of(elapsed: list[float]) -> Any:
    return metrics_in([trial(seconds) for seconds in elapsed], steps_of(len(elapsed)), mode="none")[
        "elapsed_seconds"
    ].ci


def test_fewer_than_five_trials_give_no_interval() -> None:
    assert ci_of([1.0, 2.0, 3.0, 4.0]) is None


def test_interval_encloses_the_median_and_is_the_same_every_time() -> None:
    elapsed = [5.0, 1.0, 2.0, 9.0, 3.0, 4.0, 8.0, 7.0, 6.0]
    low, high = ci_of(elapsed)
    assert 1.0 <= low < 5.0 < high <= 9.0
    assert ci_of(elapsed) == (low, high)


@pytest.mark.parametrize("count", range(5, 12))
def test_interval_covers_the_true_median_as_often_as_it_says(count: int) -> None:
    """Of values that lie to one side as of others, within 3 standard errors of 3000 seeded draws."""
    draws, said = np.random.default_rng(count), intervals.coverage(count)
    assert said >= 0.95 or count == 5
    skewed = np.exp(draws.normal(size=(3000, count)))
    ends = [intervals.interval(values) or (0.0, 0.0) for values in skewed]
    covered = np.mean([low <= 1 <= high for low, high in ends])
    assert abs(covered - said) <= 3 * (said * (1 - said) / 3000) ** 0.5


@pytest.mark.parametrize("count", [5, 7, 10])
def test_intervals_of_means_and_of_changes_cover_about_what_they_say(count: int) -> None:
    draws = np.random.default_rng(count)
    before, after = (0.5 + 0.02 * draws.normal(size=(1000, count)) for _ in range(2))
    means = [intervals.interval(values, mean=True) or (0.0, 0.0) for values in before]
    assert 0.93 <= np.mean([low <= 0.5 <= high for low, high in means]) <= 0.97
    for paired in (False, True):
        moved = [
            intervals.difference_interval(*pair, paired=paired, mean=True) or (1.0, 1.0)
            for pair in zip(before, after, strict=True)
        ]
        assert 0.93 <= np.mean([low <= 0 <= high for low, high in moved]) <= 0.97
        ratios = [
            intervals.ratio_interval(*pair, paired=paired) or (2.0, 2.0)
            for pair in zip(before[:400], after, strict=False)
        ]
        assert 0.91 <= np.mean([low <= 1 <= high for low, high in ratios]) <= 0.99


def test_intervals_of_trials_worked_out_by_hand() -> None:
    """Order statistics of the median, as binomial tables have them; Student's 2.776 for the mean of 5."""
    values = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (intervals.interval(values), intervals.coverage(5)) == ((1.0, 5.0), 1 - 2 / 2**5)
    assert (intervals.interval(np.arange(9.0)), intervals.coverage(9)) == ((1.0, 7.0), 1 - 2 * 10 / 2**9)
    half = 2.7755822252859668 * 2.5**0.5 / 5**0.5 / 100
    assert intervals.interval(values / 100, mean=True) == pytest.approx((0.03 - half, 0.03 + half))
    assert intervals.interval(values / 10, mean=True) == pytest.approx((0.3 - 10 * half, 0.3 + 10 * half))
    assert intervals.interval(values / 500, mean=True) == pytest.approx((0.0060 - half / 5, 0.0060 + half / 5))
    assert intervals.interval(np.array([0, 0, 0, 0, 0.1]), mean=True) == pytest.approx(
        (0.0, 0.02 + 2.7755822252859668 * 0.02)
    )


def test_median_trial_is_a_measured_one() -> None:
    draft = {"trials": [trial(2.0, warmup=True), trial(9.0), trial(1.0), trial(3.0), trial(4.0)]}
    assert statistics.median_trial(draft_of(draft)) == 3


def test_a_result_of_warm_up_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="not a warm-up"):
        statistics.measured_positions(draft_of({"trials": [trial(1.0, warmup=True)]}))
