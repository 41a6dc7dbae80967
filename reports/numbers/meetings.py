"""Seconds of the job from those of its ranks: between two meetings of all ranks the job takes what its slowest takes.

Ranks meet behind every step (`--sync step`), every epoch, or only at the end of the trial (`none`). Ranks of different
models meet at the end of the trial alone: the job takes what its slowest model takes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.reports.document.types import Plan
from dlio_bench.reports.numbers.metrics import PHASES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Steps = Mapping[str, npt.NDArray[Any]]


class Meetings(Struct, frozen=True, eq=False):
    """Where ranks meet. number: of the meeting that ends each step, int64 [steps], rising; model: of each rank, int64
    [ranks], or None where all ranks meet."""

    number: Ints
    model: Ints | None = None

    def __getitem__(self, chosen: Any) -> "Meetings":
        """Those of some steps."""
        return Meetings(self.number[chosen], self.model)


def model_of_ranks(plan: Plan) -> Ints | None:
    """The model of each rank, int64 [ranks]; None where there is one. Nodes have their ranks in the order of models."""
    if not plan.models:
        return None
    return np.arange(plan.ranks) % plan.ranks_per_node // (plan.ranks_per_node // len(plan.models))


def phase(steps: Steps, name: str) -> Floats:
    """Seconds in a phase, [trials, ranks, steps]; zeros where it did not take place."""
    return np.asarray(steps[name] if name in steps else np.zeros_like(steps["stall"]), dtype=np.float64)


def busy(steps: Steps) -> Floats:
    """Seconds of check + convert + compute, [trials, ranks, steps]: what a step takes with its data in memory."""
    return np.asarray(steps["check"] + phase(steps, "convert") + steps["compute"], dtype=np.float64)


def meetings(plan: Plan, steps: Steps) -> Meetings:
    """Where the ranks of a result meet.

    Ranks that need not meet do so behind a validation pass, and where the caches are dropped between epochs.
    """
    epoch, model = steps["epoch"], model_of_ranks(plan)
    if plan.sync == "step":
        return Meetings(np.arange(len(epoch)), model)
    if plan.sync == "epoch" or plan.cache == "cold-epochs":
        return Meetings(epoch, model)
    return Meetings(np.searchsorted(steps.get("validation_epoch", epoch[:0]), epoch).astype(np.int64), model)


def slowest(seconds: Floats, meeting: Meetings) -> Floats:
    """Seconds of the slowest rank from each meeting to the next, added up, [trials]; of the slowest model.

    seconds: [trials, ranks, n]; meeting: that ends each of the n.
    """
    return np.asarray(slowest_peer(seconds, meeting).max(axis=1), dtype=np.float64)


def slowest_peer(seconds: Floats, meeting: Meetings) -> Floats:
    """As `slowest`, for each rank among those that it meets, [trials, ranks]."""
    number = meeting.number
    starts = np.flatnonzero(np.diff(number, prepend=number[:1] - 1))
    between = np.add.reduceat(seconds, starts, axis=2)  # [trials, ranks, meetings]
    total = np.empty(seconds.shape[:2])
    for model in [None] if meeting.model is None else np.unique(meeting.model):
        peers = slice(None) if model is None else meeting.model == model
        total[:, peers] = between[:, peers].max(axis=1).sum(axis=1)[:, None]
    return total


def first_steps(steps: Steps) -> Ints:
    """Position of the first step of each epoch, int64 [epochs]."""
    return np.unique(steps["epoch"], return_index=True)[1].astype(np.int64)


def epoch_spans(steps: Steps) -> Floats:
    """Seconds from the start of an epoch's first step to the end of its last, exchange in, [trials, ranks, epochs]."""
    first = first_steps(steps)
    last = np.append(first[1:], len(steps["epoch"])) - 1
    took = sum(phase(steps, name)[:, :, last] for name in PHASES)
    return np.asarray(steps["start"][:, :, last] + took - steps["start"][:, :, first], dtype=np.float64)


def job_stall(steps: Steps, meeting: Meetings) -> Floats:
    """Seconds that the job loses because data are missing, [trials]: what its slowest ranks take, less what they would
    with data in memory. So the wait for a rank that waits for data counts, wherever the clock has booked it.
    """
    work = busy(steps)
    return slowest(steps["stall"] + work, meeting) - slowest(work, meeting)


def utilisation(steps: Steps, meeting: Meetings) -> Floats | None:
    """Job's AU, [trials]: measured compute over the wall time of its window, mean of the ranks.

    The window is all epochs but the first step of each, as in MLPerf Storage and DLIO (utils/statscounter.py: wall
    time of the block less the whole time of the excluded step; the barrier is in). They average epochs, which lets a
    fast one make up for a slow one; here compute and windows of the epochs are added up, so that on equal work with
    equal first steps the reader of the higher AU is the faster one. None where no epoch has a second step, or no
    rank computes.
    """
    first = first_steps(steps)
    if len(first) == len(steps["epoch"]):
        return None
    compute = np.delete(steps["compute"], first, axis=2).sum(axis=2)  # [trials, ranks]
    opening = sum(phase(steps, name)[:, :, first].sum(axis=2) for name in PHASES)
    window = slowest_peer(epoch_spans(steps), meeting[first]) - opening
    if not ((compute > 0) & (window > 0)).all():
        return None
    return np.asarray((compute / window).mean(axis=1), dtype=np.float64)


def part(steps: Steps, rows: Any, chosen: Any = slice(None)) -> dict[str, npt.NDArray[Any]]:
    """What is told by step, of the trials `rows` and the steps `chosen`."""
    whole = {"start", *PHASES} & set(steps)
    return {name: steps[name][rows][:, :, chosen] for name in whole} | {"epoch": steps["epoch"][chosen]}
