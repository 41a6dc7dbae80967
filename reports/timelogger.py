"""Logs of TimeLogger, which the NERSC study of HEPCNNB and CDB wrote: read them, and write spans as they do.

The format is that of `benchmarks/utility_classes/time_logger.py` of the study's repository. It relies on how Python 2
prints a tuple, and has these defects, which the reader takes as they are:

- Printed records share standard output with everything else, so that a line may hold other text, or several records.
  Those in files of their own have no line ends at all. The study's script finds the last record of such a line only.
- Python 2 writes a float with 12 digits: times since 1970 are exact to 0.01 s. The length of a record is more exact.
- Nothing keeps a clock that was set back from making a length negative. Such records are kept, and named.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.reports.formatting import plural
from dlio_bench.reports.spans import Span

OPENING = "TIME LOGGER OUTPUT"
HEADER = (
    "Epoch", "Rank", "Action Name", "Action Description", "Start Time", "End Time", "Time Taken", "Process ID",
    "Current Thread",
)  # fmt: skip
RESOLUTION = 0.01  # seconds, of times since 1970 as Python 2 writes them
MOST_NAMED = 20  # problems

_NUMBER = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_VALUES = re.compile(r"""(['"])For Excel:(?:\\.|(?!\1).)*\1""")  # a text as Python writes it
_RECORD = re.compile(
    rf"\s*(-?\d+), (-?\d+), (.*?), (.*), ({_NUMBER}), ({_NUMBER}), ({_NUMBER}), (\d+), (.*)", re.DOTALL
)


class Log(Struct, frozen=True):
    """The records of a log, and what is wrong with it: a sentence each."""

    spans: Sequence[Span]
    problems: Sequence[str]


def load(paths: Iterable[Path]) -> Log:
    """The records of files, and of all files below folders. UsageError, EnvironmentFailure."""
    files: list[Path] = []
    for path in paths:
        files += sorted(below for below in path.rglob("*") if below.is_file()) if path.is_dir() else [path]
    spans: list[Span] = []
    problems: list[str] = []
    for file in files:
        try:
            log = parse(file.read_text(errors="replace"), str(file))
        except OSError as error:
            raise EnvironmentFailure(f"{file} cannot be read: {error.strerror}.") from error
        spans += log.spans
        problems += log.problems
    if not spans:
        raise UsageError(
            f"{', '.join(map(str, paths))}: no finished result, and no record of TimeLogger in "
            f"{plural(len(files), 'file')}. Its records begin with '{OPENING}'."
        )
    return Log(spans, problems)


def parse(text: str, where: str) -> Log:
    """The records in a text; `where` names it in problems."""
    spans: list[Span] = []
    problems: list[str] = []
    openings = [match.start() for match in re.finditer(OPENING, text)]
    for number, (begin, end) in enumerate(pairwise([*openings, len(text)]), start=1):
        values = _VALUES.search(text, begin, end)
        fields = _RECORD.fullmatch(_value(values[0])) if values else None
        if fields is None:
            problems.append(f"{where}: record {number}, at byte {begin}, is cut off or mixed with other output")
            continue
        span = Span(
            epoch=int(fields[1]),
            rank=int(fields[2]),
            action=fields[3],
            component=fields[4].strip(),
            start=float(fields[5]),
            end=float(fields[6]),
            seconds=float(fields[7]),
            process=int(fields[8]),
            thread=fields[9],
        )
        spans.append(span)
        if span.seconds < 0 or span.end < span.start:
            problems.append(
                f"{where}: record {number} ('{span.component}', rank {span.rank}) ends {abs(span.seconds):.3g} s "
                "before it begins: a clock was set back; it counts as nothing"
            )
    return Log(spans, problems)


def _value(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal)).removeprefix("For Excel:")
    except (SyntaxError, ValueError):  # a broken escape
        return ""


def record(span: Span) -> str:
    """A span as TimeLogger prints it, without a line end. Numbers keep all digits where Python 2 had 12."""
    values = (
        span.epoch, span.rank, span.action, span.component, span.start, span.end, span.seconds, span.process,
        span.thread,
    )  # fmt: skip
    parts = (
        OPENING, f"Epoch: {span.epoch}", f"Rank: {span.rank}", span.action, span.component,
        f"Start Time: {span.start:g}", f"End Time: {span.end:g}", f"Time Taken: {span.seconds:g}",
        f"For Excel:{', '.join(map(str, values))}",
    )  # fmt: skip
    return str(parts)
