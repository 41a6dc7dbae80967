"""`dlio-bench trace` of results: phases, components, I/O pattern, TensorFlow's part, and the study's tables."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.commands.tracing import exports
from dlio_bench.harness.commands.tracing.options import Options
from dlio_bench.reports.document.collection import load_files
from dlio_bench.reports.document.marks import EMULATED_PFS, TENSORFLOW_TRACE
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.statistics import median_trial
from dlio_bench.reports.run import tables
from dlio_bench.reports.traces import (
    access_pattern,
    components,
    result_spans,
    scaling,
    scaling_tables,
    span_pattern,
    tensorflow,
    trainers,
)
from dlio_bench.reports.traces.access_pattern import Pattern
from dlio_bench.reports.traces.tables import as_text, problem_lines
from dlio_bench.wrapping import printable, wrap

PATTERNS = {"io_pattern": "I/O pattern, dataset", "node_io_pattern": "I/O pattern, copies and tiers on nodes"}


class TracedResult(Struct, frozen=True):
    """One result, the position of one of its trials, its spans, and the files that were written of them."""

    label: str
    result: Result
    steps: Steps
    trial: int
    recorded: result_spans.Recorded
    files: list[exports.File]

    @property
    def patterns(self) -> dict[str, Pattern]:
        """How the files of the dataset, and those of nodes, were accessed; empty where no spans were recorded."""
        if self.recorded.spans is None:
            return {}
        trial = self.result.trials[self.trial]
        dataset, node = span_pattern.patterns_of(self.recorded.spans, trial.trial)
        counters = span_pattern.counter_note(trial.bytes_requested, trial.bytes_device)
        found = {"io_pattern": access_pattern.with_notes(dataset, counters)}
        return found if node is None else found | {"node_io_pattern": node}

    @property
    def waits(self) -> tensorflow.InputTable | None:
        """What trainers waited for; None where TensorFlow was not traced."""
        if self.recorded.spans is None or TENSORFLOW_TRACE not in self.result.marks:
            return None
        return tensorflow.table(self.recorded.spans, emulated=EMULATED_PFS in self.result.marks)

    @property
    def case(self) -> scaling.ScalingCase:
        """Its figures for the study's tables."""
        case = scaling.case(self.label, self.result, self.steps, self.trial, self.recorded.spans)
        return replace(case, recorded=self.recorded.is_there, problems=self.recorded.problems)


def run(options: Options, left_out: Sequence[str]) -> int:
    """Print the tables, and write what is asked for; DataError.status where spans are damaged.

    left_out: what is not shown of the paths, a sentence each.
    """
    loaded = load_files(options.paths)
    if len(loaded) > 1 and (options.chrome or options.timelogger):
        raise UsageError(f"--chrome and --timelogger are of one result, but {len(loaded)} are here. Name one folder.")
    labels = tables.labels([result for result, _ in loaded.values()])
    every = []
    for label, (path, (result, steps)) in zip(labels, loaded.items(), strict=True):
        trial, recorded = _trial(options.trial, result), result_spans.load_beside(path.parent, result, steps)
        files = exports.write(options, result, steps, trial, recorded)
        every.append(TracedResult(label, result, steps, trial, recorded, files))
    scalings = scaling.scalings([of.case for of in every])
    if options.html is not None:
        from dlio_bench.reports.traces import page  # Jinja is slow to load

        page.write(scalings, options.html, {of.label: _folds(of) for of in every})
    if options.json:
        by_label = scaling.documents(scalings)
        print(json.dumps([_document(of) | by_label[of.label] for of in every]))
    else:
        print(_text(every, scalings, alone=options.verbose or len(every) == 1), end="")
    for note in left_out:
        print("\n".join(wrap(printable(note), "note: ", whole_words=True)), file=sys.stderr)
    return DataError.status if any(of.recorded.damaged for of in every) else 0


def _trial(asked: int | None, result: Result) -> int:
    """The position of a trial. UsageError."""
    if asked is None:
        return median_trial(result)
    if not 1 <= asked <= len(result.trials):
        raise UsageError(f"--trial {asked}: the result has trials 1 to {len(result.trials)}, warm-up included.")
    return asked - 1


def _text(every: Sequence[TracedResult], scalings: Sequence[scaling.Scaling], *, alone: bool) -> str:
    """For a terminal; `alone`: with the tables of each result."""
    texts, with_limits = [], True  # of patterns, for the first result that has one
    for of in every if alone else ():
        text = trainers.render(of.result, of.steps, of.trial)
        if of.recorded.spans is not None:
            text += components.render(of.recorded.spans, of.result.trials[of.trial].trial)
        of_pattern = _pattern_text(of, with_limits=with_limits)
        with_limits = with_limits and not of_pattern
        text += of_pattern + _waits_text(of)
        texts.append(text + as_text(problem_lines(of.recorded.problems)) + exports.file_lines(of.files))
    more = "" if alone else "\n  each result's own tables: --verbose, or name one result\n"
    return "\n".join([scaling_tables.answer_text(scalings), *texts, scaling_tables.render(scalings)]) + more


def _folds(of: TracedResult) -> dict[str, str]:
    """What the page folds away of a result, by title."""
    return {
        "I/O pattern": _pattern_text(of, with_limits=True).strip("\n"),
        "Waiting for input, by TensorFlow's trace": _waits_text(of).strip("\n"),
    }


def _pattern_text(of: TracedResult, *, with_limits: bool) -> str:
    """with_limits: say once what the classes mean."""
    return "".join(
        f"\n{access_pattern.render(pattern, PATTERNS[name], with_limits=with_limits and not at)}"
        for at, (name, pattern) in enumerate(of.patterns.items())
    )


def _waits_text(of: TracedResult) -> str:
    return "" if of.waits is None else "\n" + tensorflow.render(of.waits)


def _document(of: TracedResult) -> dict[str, Any]:
    recorded, trial = of.recorded, of.result.trials[of.trial].trial
    rows = [] if recorded.spans is None else components.component_rows(recorded.spans, trial)
    clocks = {"clocks": {}, "lost": {}} if recorded.spans is None else components.clock_document(recorded.spans)
    return {
        "result": of.label,
        "trial": trial + 1,
        "phases": [asdict(row) for row in trainers.breakdown(of.steps, of.trial)],
        "spans": {
            "recorded": recorded.is_there,
            "usable": recorded.spans is not None,
            "components": [asdict(row) | {"mean_bytes": row.mean_bytes} for row in rows],
            **clocks,
            "problems": list(recorded.problems),
        },
        **{name: access_pattern.document(pattern) for name, pattern in of.patterns.items()},
        **({} if of.waits is None else {"tensorflow": tensorflow.document(of.waits)}),
        "files": of.files,
    }
