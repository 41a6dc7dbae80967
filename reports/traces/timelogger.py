"""Logs of TimeLogger, which the NERSC study of HEPCNNB and CDB wrote: read them, and write a run's spans as they do.

The format is that of `benchmarks/utility_classes/time_logger.py` of the study's repository. It relies on how Python 2
prints a tuple, and has these defects, which the reader takes as they are:

- Printed records share standard output with everything else, so that a line may hold other text, or several records.
  Those in files of their own have no line ends at all. The study's script finds the last record of such a line only.
- Python 2 writes a float with 12 digits: times since 1970 are exact to 0.01 s. The length of a record is more exact.
- Nothing keeps a clock that was set back from making a length negative. Such records are kept, and named.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from dlio_bench.components import BY_NAME, COMPONENTS
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.reports.traces.accounting import ITERATION, READING
from dlio_bench.reports.traces.timeline import TRAINER, Span, Timeline, spans
from dlio_bench.reports.traces.trainers import VALIDATION
from dlio_bench.reports.view.formatting import plural

OPENING = "TIME LOGGER OUTPUT"
HEADER = (
    "Epoch", "Rank", "Action Name", "Action Description", "Start Time", "End Time", "Time Taken", "Process ID",
    "Current Thread",
)  # fmt: skip
RESOLUTION = 0.01  # seconds, of times since 1970 as Python 2 writes them
MAIN = "<_MainThread(MainThread)>"  # as Python writes the thread that a program begins with

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
    records: list[Span] = []
    problems: list[str] = []
    for file in files:
        try:
            log = parse(file.read_text(errors="replace"), str(file))
        except OSError as error:
            raise EnvironmentFailure(f"{file} cannot be read: {error.strerror}.") from error
        records += log.spans
        problems += log.problems
    if not records:
        raise UsageError(
            f"{', '.join(map(str, paths))}: no finished result, and no record of TimeLogger in "
            f"{plural(len(files), 'file')}. Its records begin with '{OPENING}'."
        )
    return Log(records, problems)


def parse(text: str, where: str) -> Log:
    """The records in a text; `where` names it in problems."""
    records: list[Span] = []
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
        records.append(span)
        if span.seconds < 0 or span.end < span.start:
            problems.append(
                f"{where}: record {number} ('{span.component}', rank {span.rank}) ends {abs(span.seconds):.3g} s "
                "before it begins: a clock was set back; it counts as nothing"
            )
    return Log(records, problems)


def _value(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal)).removeprefix("For Excel:")
    except (SyntaxError, ValueError):  # a broken escape
        return ""


def record(span: Span) -> str:
    """A span as TimeLogger prints it, without a line end. Numbers keep all digits where Python 2 had 12."""
    parts = (
        OPENING, f"Epoch: {span.epoch}", f"Rank: {span.rank}", span.action, span.component,
        f"Start Time: {span.start:g}", f"End Time: {span.end:g}", f"Time Taken: {span.seconds:g}",
        f"For Excel:{', '.join(map(str, astuple(span)))}",
    )  # fmt: skip
    return str(parts)


def published_spans(timeline: Timeline, trial: int) -> Timeline:
    """The spans of a trial whose components have a published name. trial: its number.

    Where none of these is the study's for reading, the reads of our readers are in, by our names.
    """
    of_trial = with_passes(timeline.part(timeline.trial == trial))
    chosen = {component.name for component in COMPONENTS if component.published}
    if not of_trial.are_of(*READING.values()).any():
        chosen |= {component.name for component in COMPONENTS if component.kind == "read"}
    return of_trial.part(of_trial.are_of(*chosen))


def with_passes(timeline: Timeline) -> Timeline:
    """The spans with each validation pass as a part of the step before it, whose end moves to that of the pass.

    So it is in the study: the 'Training Iteration' of a step that ends an epoch encloses the pass behind it. On 64
    nodes HEPCNNB's Read, Load and Training (2534.06 s) are its whole loop (2534.2 s), and CDB's Training is the sum of
    its whole epochs. A pass whose epoch has no recorded step on its thread is a 'Training Iteration' of its own.
    """
    is_step, is_pass = timeline.are_of(ITERATION), timeline.are_of(VALIDATION)
    epoch = np.where(timeline.epoch < 0, ~timeline.epoch, timeline.epoch)
    chosen = np.flatnonzero(is_step | is_pass)
    keys = (is_pass, timeline.start, epoch, timeline.track, timeline.trial)
    order = chosen[np.lexsort([key[chosen] for key in keys])]
    last = np.maximum.accumulate(np.where(is_step[order], np.arange(len(order)), -1))  # the last step begun
    passes = np.flatnonzero(is_pass[order] & (last >= 0))
    step, behind = order[last[passes]], order[passes]
    alike = epoch[step] == epoch[behind]
    for of in (timeline.track, timeline.trial):
        alike &= of[step] == of[behind]
    end, component = timeline.end.copy(), timeline.component.copy()
    np.maximum.at(end, step[alike], timeline.end[behind[alike]])
    component[is_pass] = len(timeline.components)
    enclosed = np.zeros(len(timeline), dtype=bool)
    enclosed[behind[alike]] = True
    components = [*timeline.components, BY_NAME[ITERATION]]
    return replace(timeline, end=end, component=component, components=components).part(~enclosed)


def timelogger_spans(timeline: Timeline, trial: int) -> Iterator[Span]:
    """The same as TimeLogger's spans, with threads as Python writes them. A quote would end the study's records."""
    for span in spans(timeline, trial):
        name = span.thread.replace("'", " ")
        yield replace(span, thread=MAIN if name == TRAINER else f"<Thread({name})>")
