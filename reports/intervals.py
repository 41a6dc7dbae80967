"""Bootstrap confidence intervals over trials. They are the same on every machine: the draws are raw Philox words."""

import numpy as np
import numpy.typing as npt

from dlio_bench.reports.meetings import Floats

MIN_TRIALS = 5  # MLPerf Storage asks for five runs; below that a percentile bootstrap is only the range
RESAMPLES = 4000
SEED = 0x646C696F


def resamples(trials: int, stream: int = 0) -> npt.NDArray[np.int64] | None:
    """Trial positions drawn with replacement, [RESAMPLES, trials]; None with fewer than 5 trials.

    stream: another number gives independent draws, for a second group of trials.
    """
    if trials < MIN_TRIALS:
        return None
    words = np.random.Philox(key=SEED + stream).random_raw(RESAMPLES * trials)
    return (words % np.uint64(trials)).astype(np.int64).reshape(RESAMPLES, trials)


def centre(values: Floats, *, mean: bool = False) -> float:
    """Median (or mean) of one value per trial."""
    return float(values.mean() if mean else np.median(values))


def interval(drawn: Floats, *, mean: bool = False) -> tuple[float, float]:
    """The 95 % percentile interval [low, high] of the median (or mean) of values drawn, [RESAMPLES, trials]."""
    return _middle(_centres(drawn, mean=mean))


def ratio_interval(before: Floats, after: Floats, *, paired: bool, mean: bool = False) -> tuple[float, float] | None:
    """The 95 % interval of median(after) / median(before), one value per trial each; None with fewer than 5 trials.

    paired: trial k of both was measured in the same round of one run, so both are drawn together, and what slows a
    whole round down cancels out. Otherwise each is drawn on its own. None too if `before` may be 0.
    """
    drawn = _drawn_centres(before, after, paired=paired, mean=mean)
    if drawn is None or (drawn[0] == 0).any():
        return None
    return _middle(drawn[1] / drawn[0])


def difference_interval(
    before: Floats, after: Floats, *, paired: bool, mean: bool = False
) -> tuple[float, float] | None:
    """The 95 % interval of median(after) - median(before), drawn as for `ratio_interval`; None below 5 trials."""
    drawn = _drawn_centres(before, after, paired=paired, mean=mean)
    return None if drawn is None else _middle(drawn[1] - drawn[0])


def _drawn_centres(before: Floats, after: Floats, *, paired: bool, mean: bool) -> tuple[Floats, Floats] | None:
    rows = resamples(len(before))
    others = rows if paired else resamples(len(after), stream=1)
    if rows is None or others is None:
        return None
    return _centres(before[rows], mean=mean), _centres(after[others], mean=mean)


def _centres(drawn: Floats, *, mean: bool) -> Floats:
    return np.asarray(drawn.mean(axis=1) if mean else np.median(drawn, axis=1), dtype=np.float64)


def _middle(centres: Floats) -> tuple[float, float]:
    low, high = np.percentile(centres, [2.5, 97.5])
    return float(low), float(high)
