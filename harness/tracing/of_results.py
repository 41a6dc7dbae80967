"""`dlio-bench trace` of results: phases, components, I/O pattern, TensorFlow's part, and the study's tables."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.tracing import components, input_time, kinds, pattern, span_files, study

if TYPE_CHECKING:
    from dlio_bench.reports.meetings import Steps
    from dlio_bench.reports.types import Result


def run(options: argparse.Namespace) -> int:
    """Print the tables, and write what is asked for; DataError.status where spans are damaged."""
    from dlio_bench.reports import recorded, tables, traced_text, trainer_text
    from dlio_bench.reports.collection import load_files
    from dlio_bench.wrapping import printable, wrapped

    left_out = kinds.left_out(options.paths)
    loaded = load_files(options.paths)
    if len(loaded) > 1 and (options.chrome or options.timelogger):
        raise UsageError(f"--chrome and --timelogger are of one result, but {len(loaded)} are here. Name one folder.")
    labels = tables.labels([result for result, _ in loaded.values()])
    documents, texts, cases, status = [], [], [], 0
    folded: dict[str, dict[str, str]] = {}  # on the page
    with_limits = True  # of patterns, for the first result that has one
    for label, (path, (result, steps)) in zip(labels, loaded.items(), strict=True):
        trial = _trial(options.trial, result)
        spans = recorded.beside(path.parent, result, steps)
        cases.append((label, result, steps, trial, spans))
        files = span_files.write(options, result, steps, trial, spans)
        if options.json:
            document = _document(label, result, steps, trial) | components.document(result, trial, spans)
            document |= pattern.document(result, trial, spans.spans) | input_time.document(result, spans.spans)
            documents.append(document | {"files": files})
        else:
            text = trainer_text.render(result, steps, trial) + components.text(result, trial, spans)
            of_pattern = pattern.text(result, trial, spans.spans, with_limits=with_limits)
            with_limits = with_limits and not of_pattern
            text += of_pattern + input_time.text(result, spans.spans)
            texts.append(text + components.problems(spans) + span_files.told(files))
        if options.html is not None:
            folded[label] = {
                "I/O pattern": pattern.text(result, trial, spans.spans, with_limits=True).strip("\n"),
                "Waiting for input, by TensorFlow's trace": input_time.text(result, spans.spans).strip("\n"),
            }
        status = DataError.status if spans.damaged else status
    told = study.scalings(cases)
    if options.html is not None:
        study.write(told, options.html, folded)
    if options.json:
        more = study.documents(told, labels)
        print(json.dumps([document | other for document, other in zip(documents, more, strict=True)]))
    else:
        print("\n".join([traced_text.answer(told), *texts, traced_text.render(told)]), end="")
    for note in left_out:
        print("\n".join(wrapped(printable(note), "note: ", whole_words=True)), file=sys.stderr)
    return status


def _document(label: str, result: "Result", steps: "Steps", trial: int) -> dict[str, object]:
    from dlio_bench.reports import trainer_spans

    rows = [asdict(row) for row in trainer_spans.breakdown(steps, trial)]
    return {"result": label, "trial": result.trials[trial].trial + 1, "phases": rows}


def _trial(asked: int | None, result: "Result") -> int:
    """The position of a trial. UsageError."""
    from dlio_bench.reports.statistics import median_trial

    if asked is None:
        return median_trial(result)
    if not 1 <= asked <= len(result.trials):
        raise UsageError(f"--trial {asked}: the result has trials 1 to {len(result.trials)}, warm-up included.")
    return asked - 1
