"""`dlio-bench trace` of results: phases, components, I/O pattern, TensorFlow's part, and the study's tables."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.tracing import components, input_time, kinds, pattern, span_files, study

if TYPE_CHECKING:
    from dlio_bench.reports.meetings import Steps
    from dlio_bench.reports.recorded import Recorded
    from dlio_bench.reports.traced import Scaling
    from dlio_bench.reports.types import Result


class Traced(Struct, frozen=True):
    """One result, the position of one of its trials, its spans, and the files that were written of them."""

    label: str
    result: "Result"
    steps: "Steps"
    trial: int
    spans: "Recorded"
    files: list[dict[str, Any]]


def run(options: argparse.Namespace) -> int:
    """Print the tables, and write what is asked for; DataError.status where spans are damaged."""
    from dlio_bench.reports import recorded, tables
    from dlio_bench.reports.collection import load_files
    from dlio_bench.wrapping import printable, wrapped

    left_out = kinds.left_out(options.paths)
    loaded = load_files(options.paths)
    if len(loaded) > 1 and (options.chrome or options.timelogger):
        raise UsageError(f"--chrome and --timelogger are of one result, but {len(loaded)} are here. Name one folder.")
    labels = tables.labels([result for result, _ in loaded.values()])
    every = []
    for label, (path, (result, steps)) in zip(labels, loaded.items(), strict=True):
        trial, spans = _trial(options.trial, result), recorded.beside(path.parent, result, steps)
        files = span_files.write(options, result, steps, trial, spans)
        every.append(Traced(label, result, steps, trial, spans, files))
    told = study.scalings([(of.label, of.result, of.steps, of.trial, of.spans) for of in every])
    if options.html is not None:
        study.write(told, options.html, {of.label: _folds(of) for of in every})
    if options.json:
        pairs = zip(every, study.documents(told, labels), strict=True)
        print(json.dumps([_document(of) | of_study for of, of_study in pairs]))
    else:
        print(_text(every, told, alone=options.verbose or len(every) == 1), end="")
    for note in left_out:
        print("\n".join(wrapped(printable(note), "note: ", whole_words=True)), file=sys.stderr)
    return DataError.status if any(of.spans.damaged for of in every) else 0


def _text(every: Sequence[Traced], told: "Sequence[Scaling]", *, alone: bool) -> str:
    """For a terminal; `alone`: with the tables of each result."""
    from dlio_bench.reports import traced_text, trainer_text

    texts, with_limits = [], True  # of patterns, for the first result that has one
    for of in every if alone else ():
        text = trainer_text.render(of.result, of.steps, of.trial) + components.text(of.result, of.trial, of.spans)
        of_pattern = pattern.text(of.result, of.trial, of.spans.spans, with_limits=with_limits)
        with_limits = with_limits and not of_pattern
        text += of_pattern + input_time.text(of.result, of.spans.spans)
        texts.append(text + components.problems(of.spans) + span_files.told(of.files))
    more = "" if alone else "\n  each result's own tables: --verbose, or name one result\n"
    return "\n".join([traced_text.answer(told), *texts, traced_text.render(told)]) + more


def _folds(of: Traced) -> dict[str, str]:
    """What the page folds away of a result, by title."""
    return {
        "I/O pattern": pattern.text(of.result, of.trial, of.spans.spans, with_limits=True).strip("\n"),
        "Waiting for input, by TensorFlow's trace": input_time.text(of.result, of.spans.spans).strip("\n"),
    }


def _document(of: Traced) -> dict[str, Any]:
    from dlio_bench.reports import trainer_spans

    rows = [asdict(row) for row in trainer_spans.breakdown(of.steps, of.trial)]
    return (
        {"result": of.label, "trial": of.result.trials[of.trial].trial + 1, "phases": rows}
        | components.document(of.result, of.trial, of.spans)
        | pattern.document(of.result, of.trial, of.spans.spans)
        | input_time.document(of.result, of.spans.spans)
        | {"files": of.files}
    )


def _trial(asked: int | None, result: "Result") -> int:
    """The position of a trial. UsageError."""
    from dlio_bench.reports.statistics import median_trial

    if asked is None:
        return median_trial(result)
    if not 1 <= asked <= len(result.trials):
        raise UsageError(f"--trial {asked}: the result has trials 1 to {len(result.trials)}, warm-up included.")
    return asked - 1
