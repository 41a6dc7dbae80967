"""`dlio-bench trace`: the files that it writes of spans, for Perfetto and as TimeLogger would have."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio_bench.errors import UsageError

if TYPE_CHECKING:
    from dlio_bench.reports.meetings import Steps
    from dlio_bench.reports.recorded import Recorded
    from dlio_bench.reports.timeline import Timeline
    from dlio_bench.reports.types import Result

MOST_RANKS = 64  # in a trace, unless --ranks names them


def add_options(group: "argparse._ArgumentGroup") -> None:
    """Those of the files."""
    group.add_argument(
        "--ranks", type=_ranks, metavar="R[,R...]", help=f"ranks of the trace (default: the first {MOST_RANKS})"
    )
    group.add_argument(
        "--steps",
        type=_steps,
        metavar="A-B",
        help="what was under way in these steps of the trace's ranks, from 0 on over all epochs (default: all)",
    )
    group.add_argument(
        "--chrome",
        type=Path,
        metavar="FILE",
        help="write a trace of one result, for ui.perfetto.dev or Chrome; compressed if FILE ends in .gz",
    )
    group.add_argument(
        "--timelogger",
        type=Path,
        metavar="FILE",
        help="write the spans of one result as TimeLogger would have: steps, waits, reads",
    )


def write(
    options: argparse.Namespace, result: "Result", steps: "Steps", trial: int, recorded: "Recorded"
) -> list[dict[str, Any]]:
    """Write what is asked for. Of each file its name, what it was made from, and how much it holds.

    trial: a position. UsageError, EnvironmentFailure.
    """
    kinds = ((options.chrome, _chrome), (options.timelogger, _timelogger))
    return [
        {"file": str(path)} | write_kind(options, result, steps, trial, recorded)
        for path, write_kind in kinds
        if path is not None
    ]


def _chrome(
    options: argparse.Namespace, result: "Result", steps: "Steps", trial: int, recorded: "Recorded"
) -> dict[str, Any]:
    from dlio_bench.reports import chrome_trace, trainer_spans

    ranks, chosen = _known(options.ranks, result), options.steps
    if chosen is not None and chosen.stop > result.plan.steps:
        raise UsageError(f"--steps {chosen[0]}-{chosen[-1]}: the result has steps 0 to {result.plan.steps - 1}.")
    if recorded.spans is None:
        phases = list(trainer_spans.phases(steps, trial, ranks, chosen))
        kept, all_spans = chrome_trace.earliest_phases(phases), len(phases)
        count, about = len(kept), chrome_trace.about_steps()
        events = chrome_trace.of_phases(kept, result.environment.rank_hosts)
    else:
        spans = chrome_trace.chosen(recorded.spans, result.trials[trial].trial, ranks, chosen)
        part, all_spans = chrome_trace.earliest(spans), len(spans)
        count, about = len(part), chrome_trace.about_timeline(part)
        events = chrome_trace.of_timeline(part)
    left_out = 0 if options.ranks else result.plan.ranks - len(ranks)
    sizes = {"spans": count, "left_out": all_spans - count, "left_out_ranks": left_out}
    whose = chrome_trace.about_result(result, trial)
    chrome_trace.write(options.chrome, events, whose | about | sizes | {"problems": list(recorded.problems)})
    return {"source": about["source"]} | sizes


def chrome_of_spans(options: argparse.Namespace, spans: "Timeline") -> dict[str, Any]:
    """Write the trace of one trial of a run that was stopped: the last one, or --trial. UsageError."""
    from dlio_bench.reports import chrome_trace

    trials = sorted(set(spans.trial.tolist()))
    trial = options.trial - 1 if options.trial else max(trials, default=0)
    if trial not in trials:
        raise UsageError(
            f"--trial {trial + 1}: the file has spans of trials {', '.join(str(at + 1) for at in trials)}."
        )
    of_ranks = chrome_trace.chosen(spans, trial, options.ranks or list(range(min(spans.ranks, MOST_RANKS))), None)
    part = chrome_trace.earliest(of_ranks)
    left_out = 0 if options.ranks else max(0, spans.ranks - MOST_RANKS)
    sizes = {"spans": len(part), "left_out": len(of_ranks) - len(part), "left_out_ranks": left_out}
    about = {"trial": trial + 1} | chrome_trace.about_timeline(part) | sizes | {"problems": list(spans.problems)}
    chrome_trace.write(options.chrome, chrome_trace.of_timeline(part), about)
    return {"file": str(options.chrome), "source": f"trial {trial + 1}"} | sizes


def told(files: Sequence[dict[str, Any]]) -> str:
    """What was written, for a terminal."""
    from dlio_bench.wrapping import printable, wrapped

    lines = [line for file in files for line in wrapped(printable(_told(file)), "  ")]
    return "".join(f"{line}\n" for line in ([""] if lines else []) + lines)


def _timelogger(
    options: argparse.Namespace, result: "Result", steps: "Steps", trial: int, recorded: "Recorded"
) -> dict[str, Any]:
    from dlio_bench.reports import published_spans, timelogger, trainer_spans
    from dlio_bench.reports.files import write_parts
    from dlio_bench.reports.timeline import SPANS_NAME

    if recorded.spans is None:
        source, of_steps = result.steps_file.name, list(trainer_spans.spans(steps, trial))
        count, records = len(of_steps), iter(of_steps)
    else:
        number = result.trials[trial].trial
        part = published_spans.published(recorded.spans, number)
        source, count, records = SPANS_NAME, len(part), published_spans.as_recorded(part, number)
    write_parts(options.timelogger, (f"{timelogger.record(span)}\n".encode() for span in records))
    return {"source": source, "spans": count}


def _told(file: dict[str, Any]) -> str:
    from dlio_bench.reports.formatting import plural

    parts = [f"{file['file']}: {plural(file['spans'], 'span')} from {file['source']}"]
    if file.get("left_out"):
        parts.append(f"{file['left_out']} that began later are left out: choose fewer by --ranks or --steps")
    if file.get("left_out_ranks"):
        parts.append(f"{plural(file['left_out_ranks'], 'rank')} left out: choose others by --ranks")
    return "; ".join(parts)


def _known(asked: list[int] | None, result: "Result") -> list[int]:
    """The ranks of a trace. UsageError."""
    count = result.plan.ranks
    if wrong := [rank for rank in asked or [] if rank >= count]:
        raise UsageError(f"--ranks {wrong[0]}: the result has ranks 0 to {count - 1}.")
    return asked or list(range(min(count, MOST_RANKS)))


def _ranks(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--ranks '{text}' is no list of ranks. Write numbers from 0: --ranks 0,1,5.")
    return [int(number) for number in numbers]


def _steps(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise UsageError(f"--steps '{text}' is no range of steps. Write the first and the last: --steps 0-99.")
    return range(int(first), int(last) + 1)
