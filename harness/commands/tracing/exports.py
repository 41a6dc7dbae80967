"""The files that `dlio-bench trace` writes of spans: for Perfetto, and as TimeLogger would have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.tracing.options import MOST_RANKS, Options
from dlio_bench.reports.document.files import write_parts
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.traces import chrome, timelogger, trainers
from dlio_bench.reports.traces.result_spans import Recorded
from dlio_bench.reports.traces.timeline import SPANS_NAME, Timeline
from dlio_bench.reports.view.formatting import plural
from dlio_bench.wrapping import printable, wrap

File = dict[str, Any]  # its name, what it was made from, and how much it holds


def write(options: Options, result: Result, steps: Steps, trial: int, recorded: Recorded) -> list[File]:
    """Write what is asked for of a result. trial: a position. UsageError, EnvironmentFailure."""
    kinds = ((options.chrome, _write_chrome), (options.timelogger, _write_timelogger))
    return [
        {"file": str(path)} | write_kind(path, options, result, steps, trial, recorded)
        for path, write_kind in kinds
        if path is not None
    ]


def _write_chrome(file: Path, options: Options, result: Result, steps: Steps, trial: int, recorded: Recorded) -> File:
    count, chosen = result.plan.ranks, options.steps
    if wrong := [rank for rank in options.ranks or [] if rank >= count]:
        raise UsageError(f"--ranks {wrong[0]}: the result has ranks 0 to {count - 1}.")
    if chosen is not None and chosen.stop > result.plan.steps:
        raise UsageError(f"--steps {chosen[0]}-{chosen[-1]}: the result has steps 0 to {result.plan.steps - 1}.")
    ranks = options.ranks or list(range(min(count, MOST_RANKS)))
    whose = chrome.about_result(result, trial)
    if recorded.spans is not None:
        whole = chrome.spans_of(recorded.spans, result.trials[trial].trial, ranks, chosen)
        return _write_spans(file, options, whole, count, whose, recorded.problems)
    phases = list(trainers.phases(steps, trial, ranks, chosen))
    kept, about = chrome.earliest_phases(phases), chrome.ABOUT_STEPS
    sizes = _sizes(options, len(kept), len(phases), count)
    events = chrome.of_phases(kept, result.environment.rank_hosts)
    chrome.write(file, events, whose | about | sizes | {"problems": list(recorded.problems)})
    return {"source": about["source"]} | sizes


def _write_spans(
    file: Path, options: Options, spans: Timeline, ranks: int, whose: dict[str, Any], problems: Sequence[str]
) -> File:
    part = chrome.earliest_spans(spans)
    about, sizes = chrome.about_timeline(part), _sizes(options, len(part), len(spans), ranks)
    chrome.write(file, chrome.of_timeline(part), whose | about | sizes | {"problems": list(problems)})
    return {"source": about["source"]} | sizes


def _sizes(options: Options, kept: int, spans: int, ranks: int) -> File:
    left_out = 0 if options.ranks else max(0, ranks - MOST_RANKS)
    return {"spans": kept, "left_out": spans - kept, "left_out_ranks": left_out}


def write_chrome_of_spans(file: Path, options: Options, spans: Timeline) -> File:
    """Write the trace of one trial of a run that was stopped: the last one, or --trial. UsageError."""
    trials = sorted(set(spans.trial.tolist()))
    trial = options.trial - 1 if options.trial else max(trials, default=0)
    if trial not in trials:
        raise UsageError(
            f"--trial {trial + 1}: the file has spans of trials {', '.join(str(at + 1) for at in trials)}."
        )
    ranks = options.ranks or list(range(min(spans.ranks, MOST_RANKS)))
    whole = chrome.spans_of(spans, trial, ranks, None)
    written = _write_spans(file, options, whole, spans.ranks, {"trial": trial + 1}, spans.problems)
    return {"file": str(file)} | written | {"source": f"trial {trial + 1}"}


def _write_timelogger(file: Path, _: Options, result: Result, steps: Steps, trial: int, recorded: Recorded) -> File:
    if recorded.spans is None:
        source, of_steps = result.steps_file.name, list(trainers.spans(steps, trial))
        count, records = len(of_steps), iter(of_steps)
    else:
        number = result.trials[trial].trial
        part = timelogger.published_spans(recorded.spans, number)
        source, count, records = SPANS_NAME, len(part), timelogger.timelogger_spans(part, number)
    write_parts(file, (f"{timelogger.record(span)}\n".encode() for span in records))
    return {"source": source, "spans": count}


def file_lines(files: Sequence[File]) -> str:
    """What was written, for a terminal."""
    lines = [""] if files else []
    for file in files:
        parts = [f"{file['file']}: {plural(file['spans'], 'span')} from {file['source']}"]
        if file.get("left_out"):
            parts.append(f"{file['left_out']} that began later are left out: choose fewer by --ranks or --steps")
        if file.get("left_out_ranks"):
            parts.append(f"{plural(file['left_out_ranks'], 'rank')} left out: choose others by --ranks")
        lines += wrap(printable("; ".join(parts)), "  ")
    return "".join(f"{line}\n" for line in lines)
