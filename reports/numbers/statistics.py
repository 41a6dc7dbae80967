"""Metrics of one result: pure functions from (draft, steps) to named values with units.

Each metric has one value per trial, which is what the confidence interval resamples: steps and epochs of one trial
share a cache and a placement and are not independent. Warm-up trials are left out. Times in seconds, sizes in bytes.
"""

from collections.abc import Mapping

import numpy as np

from dlio_bench.counters import COUNTERS, SECONDS, Quantity
from dlio_bench.reports.document.trials import Trial
from dlio_bench.reports.document.types import Draft, Metric
from dlio_bench.reports.numbers import intervals
from dlio_bench.reports.numbers.meetings import (
    Floats,
    Meetings,
    Steps,
    busy,
    epoch_spans,
    first_steps,
    job_stall,
    meetings,
    model_of_ranks,
    part,
    phase,
    slowest,
    slowest_peer,
    utilisation,
)
from dlio_bench.reports.numbers.metrics import METRICS, PHASES, SHARES


def metrics(draft: Draft, steps: Steps) -> dict[str, Metric]:
    """Every metric of the table, by name.

    The value is the median over the measured trials; for the `share_*` it is the mean, because medians of parts
    need not sum to one. `ci` is the interval [low, high] of that same statistic (`intervals`), or None with fewer
    than 5 trials. Value and ci are None where the metric has no meaning (`au` without compute).

    `harness_share` is what the harness itself adds to the loop: checks of what was delivered, barriers beyond the last
    arrival, and what is in no phase.

    Validation passes are in `elapsed_seconds` and `no_io_seconds` (and so in `over_bound`), in bytes and bandwidths, in
    `read_seconds`, `decode_seconds` and `compute_overrun`, and have a `share_*` of the loop. The metrics of
    training leave them out: epochs, steps, `samples_per_second`, stall and AU. Formulas: docs/reference/metrics.md.
    """
    return summary(per_trial(draft, steps), METRICS)


def summary(table: Mapping[str, Floats | None], quantities: Mapping[str, Quantity]) -> dict[str, Metric]:
    """Metrics from their values of trials: the median (of `share_*` the mean), and its interval."""
    by_name: dict[str, Metric] = {}
    for name, quantity in quantities.items():
        values = table[name]
        mean = name in SHARES
        value = None if values is None else intervals.centre(values, mean=mean)
        ci = None if values is None else intervals.interval(values, mean=mean)
        by_name[name] = Metric(value, quantity.unit, ci)
    return by_name


def measured_positions(draft: Draft) -> list[int]:
    """Positions in draft.trials of the trials that count. Raises ValueError when all are warm-up."""
    positions = [position for position, trial in enumerate(draft.trials) if not trial.warmup]
    if not positions:
        raise ValueError("a result needs at least one trial that is not a warm-up")
    return positions


def median_trial(draft: Draft) -> int:
    """Position of the measured trial whose elapsed time is the median (the lower one of two)."""
    positions = sorted(measured_positions(draft), key=lambda position: float(draft.trials[position].elapsed_seconds))
    return positions[(len(positions) - 1) // 2]


def step_cost(draft: Draft, steps: Steps) -> Floats:
    """What a step costs the job, [trials, steps]: its slowest rank's stall + check + convert + compute.

    The exchange is left out, as it is mostly the wait for that slowest rank. Several models have their steps one behind
    the other, [trials, models x steps].
    """
    cost, model = np.asarray(steps["stall"] + busy(steps), dtype=np.float64), model_of_ranks(draft.plan)
    if model is None:
        return np.asarray(cost.max(axis=1), dtype=np.float64)
    return np.concatenate([cost[:, model == number].max(axis=1) for number in np.unique(model)], axis=1)


def phase_shares(steps: Steps) -> Floats:
    """Share of training's wall time by phase, [trials, ranks, phases], phases as in PHASES."""
    training = steps["loop"] - validation(steps).sum(axis=2)
    return np.stack([phase(steps, name).sum(axis=2) / training for name in PHASES], axis=2)


def validation(steps: Steps, name: str = "validation") -> Floats:
    """Seconds of each validation pass, [trials, ranks, passes]: all, or `validation_stall`, `validation_busy` of it."""
    return np.asarray(steps.get(name, np.zeros((*steps["loop"].shape, 0))), dtype=np.float64)


def job_waits(draft: Draft, steps: Steps) -> Floats:
    """Seconds that the job loses because data are missing, in training and in validation passes, [measured trials]."""
    rows = measured_positions(draft)
    stall, work = (validation(steps, f"validation_{name}")[rows] for name in ("stall", "busy"))
    passes = ((stall + work).max(axis=1) - work.max(axis=1)).sum(axis=1)
    return np.asarray(job_stall(part(steps, rows), meetings(draft.plan, steps)) + passes, dtype=np.float64)


def per_trial(draft: Draft, steps: Steps) -> dict[str, Floats | None]:
    """Each metric's values, float64 [measured trials], or None where it has no meaning."""
    rows = measured_positions(draft)
    trials = [draft.trials[row] for row in rows]
    elapsed = _column(trials, "elapsed_seconds")
    epochs = [[epoch.seconds for epoch in trial.epochs] for trial in trials]
    several = len(epochs[0]) > 1
    counters = {name: _known_column(trials, name) for name in COUNTERS}
    # bytes and samples are the job's; seconds, which overlap the trainers' phases, the mean of its ranks
    per_rank = {name: steps["loop"].shape[1] for name, counter in COUNTERS.items() if counter.unit == SECONDS}
    computes = draft.compute.mode != "none"

    shares = phase_shares(steps)[rows]
    cost = step_cost(draft, steps)[rows]
    timed, meeting = part(steps, rows), meetings(draft.plan, steps)
    loop, passes = steps["loop"][rows], validation(steps)[rows]
    in_training = 1 - passes.sum(axis=2) / loop  # [trials, ranks], share of the loop
    by_phase = (shares * in_training[:, :, None]).mean(axis=1)
    # checkpoints are written whatever is read, and a pass ends when its slowest rank does
    no_io = slowest_peer(busy(timed) + phase(timed, "checkpoint"), meeting)  # [trials, ranks]
    each_pass = Meetings(np.arange(passes.shape[2]), meeting.model)
    no_io = (no_io + slowest_peer(validation(steps, "validation_busy")[rows], each_pass)).max(axis=1)
    validated = passes.max(axis=1)  # [trials, passes]
    training = elapsed - passes.min(axis=1).sum(axis=1)  # a pass begins when the last rank does
    own_stall = timed["stall"].sum(axis=2) / training[:, None]  # [trials, ranks]
    waited = validation(steps, "validation_stall")[rows].sum(axis=2)

    values: dict[str, Floats | None] = {
        "elapsed_seconds": elapsed,
        "epoch_seconds": np.median(epochs, axis=1),
        # with a cold start the first epoch reads the storage, and later ones what caches have kept of it
        "first_epoch_seconds": np.array([parts[0] for parts in epochs]) if several else None,
        "later_epochs_seconds": np.median([parts[1:] for parts in epochs], axis=1) if several else None,
        "samples_per_second": _column(trials, "samples") / training,
        "delivered_bandwidth": _column(trials, "bytes_useful") / elapsed,
        "pfs_bandwidth": np.array([file_system_rate(trial) for trial in trials]),
        "stall_share": job_stall(timed, meeting) / training,
        "own_stall_share": own_stall.mean(axis=1),
        "own_stall_share_worst_rank": own_stall.max(axis=1),
        "au": utilisation(timed, meeting) if computes else None,
        "mlperf_au": _mean_of_epochs(timed, meeting) if computes else None,
        **_steady(timed, meeting, computes=computes),
        "no_io_seconds": no_io,
        "over_bound": elapsed / no_io if computes and (no_io > 0).all() else None,
        **{name: None if column is None else column / per_rank.get(name, 1) for name, column in counters.items()},
        "allreduce_seconds": _reduce_seconds(trials),
        "compute_overrun": _overrun_share(trials) if computes else None,
        "validation_seconds": np.median(validated, axis=1) if validated.size else None,
        "validation_stall_share": (waited / passes.sum(axis=2)).mean(axis=1) if validated.size else None,
        "share_validation": 1.0 - in_training.mean(axis=1),
    }
    for percent in (50, 95, 99):
        values[f"step_p{percent}"] = np.percentile(cost, percent, axis=1)
    for position, name in enumerate(PHASES):
        values[f"share_{name}"] = by_phase[:, position]
    values["share_other"] = in_training.mean(axis=1) - by_phase.sum(axis=1)
    # where ranks meet once an epoch, or behind a pass, their waiting for each other is among what is left
    known = "barrier" in steps and draft.plan.sync != "epoch"
    barriers = (steps["barrier"][rows] / loop).mean(axis=1) if known else None
    values["harness_share"] = None if barriers is None else barriers + values["share_check"] + values["share_other"]
    return values


def _mean_of_epochs(steps: Steps, meeting: Meetings) -> Floats | None:
    """AU of each epoch, their mean: argonne-lcf/dlio_benchmark @e1919d7, utils/statscounter.py:169-178,245-256."""
    epochs = [np.flatnonzero(steps["epoch"] == epoch) for epoch in np.unique(steps["epoch"])]
    each = [utilisation(part(steps, slice(None), of), meeting[of]) for of in epochs]
    known = [au for au in each if au is not None]
    return np.mean(known, axis=0) if len(known) == len(each) else None


def _steady(steps: Steps, meeting: Meetings, *, computes: bool) -> dict[str, Floats | None]:
    """Stall and AU from the second epoch on, of the wall time of those epochs; None where there is none."""
    later = steps["epoch"] > steps["epoch"][0]
    if not later.any():
        return {"steady_stall_share": None, "steady_au": None}
    rest, met = part(steps, slice(None), later), meeting[later]
    wall = slowest(epoch_spans(rest), met[first_steps(rest)])
    return {
        "steady_stall_share": job_stall(rest, met) / wall,
        "steady_au": utilisation(rest, met) if computes else None,
    }


def _column(trials: list[Trial], name: str) -> Floats:
    return np.asarray([getattr(trial, name) for trial in trials], dtype=np.float64)


def _known_column(trials: list[Trial], name: str) -> Floats | None:
    """A column, or None where a trial could not measure it."""
    return None if any(getattr(trial, name) is None for trial in trials) else _column(trials, name)


def file_system_rate(trial: Trial) -> float:
    """Bytes/s of the file system in the epochs that read from it: what it delivered, and never more than was requested.

    Where its bytes are not counted (EpochCost.bytes_device is None), those that were requested are taken.
    """
    read = []
    for epoch in trial.epochs:
        known = epoch.bytes_requested if epoch.bytes_device is None else epoch.bytes_device
        if delivered := min(known, epoch.bytes_requested):
            read.append((delivered, epoch.seconds + (epoch.validation.seconds if epoch.validation else 0.0)))
    seconds = sum(took for _, took in read)
    return sum(count for count, _ in read) / seconds if seconds else 0.0


def _reduce_seconds(trials: list[Trial]) -> Floats | None:
    """Seconds of a rank's all-reduces, mean of the ranks; None where no gradients were exchanged."""
    reduced = [trial.training for trial in trials if trial.training and trial.training.allreduce_bytes]
    if len(reduced) < len(trials):
        return None
    return np.asarray([training.allreduce_seconds for training in reduced], dtype=np.float64)


def _overrun_share(trials: list[Trial]) -> Floats | None:
    """How far the compute phase ran past what was asked, as a share of it (0.02 = 2 % late)."""
    asked_seconds = _column(trials, "compute_asked_seconds")
    return _column(trials, "compute_actual_seconds") / asked_seconds - 1.0 if (asked_seconds > 0).all() else None
