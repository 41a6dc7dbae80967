"""Limits on changes, as `compare --fail-if` takes them: 'delivered_bandwidth<-5%', 'stall_share>+2%'."""

import re
from typing import Literal

from msgspec import Struct

from dlio_bench.errors import UsageError, did_you_mean
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS
from dlio_bench.reports.comparing.difference import Change
from dlio_bench.reports.numbers.intervals import MIN_TRIALS
from dlio_bench.reports.numbers.metrics import METRICS

_FORM = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*(\S*)\s*")


class ChangeLimit(Struct, frozen=True):
    """A change beyond `amount` is one too many: 0.05 is 5 %, of a share 5 percentage points."""

    text: str
    metric: str
    side: Literal["<", ">"]
    amount: float

    def is_missed(self, change: Change) -> bool:
        """Whether the whole 95 % interval of the change lies beyond the limit. UsageError where there is none."""
        if min(change.trials) < MIN_TRIALS:
            raise UsageError(
                f"--fail-if '{self.text}' needs the interval of the change, and so {MIN_TRIALS} trials on each side; "
                f"there are {change.trials[0]} and {change.trials[1]}. Run again with --trials {MIN_TRIALS} or more."
            )
        if change.interval is None:
            raise UsageError(
                f"--fail-if '{self.text}': {self.metric} was 0 before, so there is no change in %. Give a limit on "
                "another metric."
            )
        low, high = change.interval
        return high < self.amount if self.side == "<" else low > self.amount


def parse(text: str) -> ChangeLimit:
    """A limit from its text. Raises UsageError for another form, a metric that is not known, a unit other than %."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--fail-if '{text}' is no limit on a change. Write METRIC<-N% or METRIC>+N%, such as "
            "'delivered_bandwidth<-5%', in quotes."
        )
    name, side, sign, number, unit = match.groups()
    known_metric(name, f"--fail-if '{text}'")
    if unit != "%":
        raise UsageError(
            f"--fail-if '{text}': a change has the unit %, not '{unit}'; of a share, % are percentage points. Write "
            f"{name}{side}{sign or ('-' if side == '<' else '+')}5%."
        )
    if not sign:
        likely = "-" if side == "<" else "+"
        raise UsageError(f"--fail-if '{text}': the change needs its sign. Write {name}{side}{likely}{number}%.")
    return ChangeLimit(text.strip(), name, "<" if side == "<" else ">", float(sign + number) / 100)


def known_metric(name: str, where: str) -> str:
    """The name of a metric. Raises UsageError for another name; where: the option and its value."""
    known = METRICS | CHECKPOINT_METRICS
    if name not in known:
        raise UsageError(
            f"{where}: there is no metric '{name}'.{did_you_mean(name, known)} `compare --verbose` shows the names."
        )
    return name
