"""The spans beside a result: read, and compared with its step times."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from dlio_bench.errors import DataError
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.traces import timeline
from dlio_bench.reports.traces.timeline import SPANS_NAME, Timeline
from dlio_bench.reports.traces.trainers import LOOP
from dlio_bench.reports.view.formatting import format_time

SAME = 1e-5  # seconds: both files hold the same reading of the clock, and float64 is coarse after years without a boot


class Recorded(Struct, frozen=True):
    """What a run recorded besides its steps. problems: a sentence each; damaged: see Timeline.

    spans: None if the run recorded none, or if their file is of no use, as that of another run is.
    """

    spans: Timeline | None
    problems: Sequence[str] = ()
    damaged: bool = False

    @property
    def is_there(self) -> bool:
        """Whether there is a file of spans, of use or not."""
        return self.spans is not None or self.damaged


def load_beside(folder: Path, result: Result, steps: Steps) -> Recorded:
    """The spans in the folder of a result. EnvironmentFailure where they cannot be read."""
    file = folder / SPANS_NAME
    if not file.exists():
        return Recorded(None)
    try:
        spans = timeline.load(file)
        _require_same_run(spans, result, steps, str(file))
    except DataError as error:
        return Recorded(None, [str(error)], damaged=True)
    return Recorded(spans, spans.problems, spans.damaged)


def _require_same_run(spans: Timeline, result: Result, steps: Steps, file: str) -> None:
    """DataError where the loops of ranks did not take as long as those of the result: no two runs have the same.

    A rank without spans is no other run.
    """
    fix = "Copy all files of a result together, or delete this one"
    if spans.ranks != result.plan.ranks:
        raise DataError(f"'{file}' has {spans.ranks} ranks and its result {result.plan.ranks}. {fix}.")
    numbers = [trial.trial for trial in result.trials]
    if strange := sorted(set(np.unique(spans.trial).tolist()) - set(numbers)):
        raise DataError(f"'{file}' has spans of trial {strange[0] + 1}, which its result has not. {fix}.")
    loops = spans.part(spans.are_of(LOOP))
    lasted = np.zeros((len(numbers), spans.ranks))
    np.add.at(lasted, (np.searchsorted(numbers, loops.trial), loops.rank), loops.end - loops.start)
    differs = (np.abs(lasted - steps["loop"]) > SAME) & (lasted > 0)
    if differs.any() or not lasted.any():
        position, rank = np.argwhere(differs if differs.any() else lasted == 0)[0].tolist()
        here, there = format_time(float(lasted[position, rank])), format_time(float(steps["loop"][position, rank]))
        raise DataError(
            f"'{file}' is not of the run of its result: the loop of rank {rank} in trial {numbers[position] + 1} "
            f"took {here} and {there}. {fix}."
        )
