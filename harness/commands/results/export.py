"""The options of `export`, and the call that they lead to. Heavy imports wait until the command runs."""

import json
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError, one_of
from dlio_bench.harness.commands.results.show import Results
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground.folders import require_file

FORMATS = ("csv", "pandas", "latex", "pytest-benchmark", "junit", "openmetrics", "prometheus")
SUFFIXES = {
    "pandas": "json",
    "latex": "tex",
    "pytest-benchmark": "json",
    "junit": "xml",
    "openmetrics": "txt",
    "prometheus": "prom",
}
TABLES = ("trials", "metrics", "steps")
EXAMPLES = """\
examples:
  dlio-bench export dlio-results/20260102-030405-cdb --to csv --out trials.csv
  dlio-bench export dlio-results/20260102-030405-cdb --to pandas --table metrics --out metrics.json
  dlio-bench export new/naive-8x1 --to pytest-benchmark --out new.json
  dlio-bench export new/naive-8x1 --to prometheus --out /var/lib/node_exporter/dlio_bench.prom
"""


class Options(Struct, frozen=True, kw_only=True):
    """None: not given."""

    results: Results
    to: Annotated[
        str,
        opt.option(
            "csv: a table for spreadsheets. pandas: a table that pandas.read_json(FILE, orient='table') reads with its "
            "types. latex: a table for a paper. pytest-benchmark: JSON for `pytest-benchmark compare`. junit: XML of "
            "the checks, a suite for each result. openmetrics: OpenMetrics 1.0. prometheus: the older text format, "
            "which node_exporter's textfile collector reads",
            metavar="FORMAT",
            choices=FORMATS,
            required=True,
        ),
    ]
    table: Annotated[
        str | None,
        opt.option(
            "with csv and pandas. trials: a row for each trial and epoch (default). metrics: a row for each metric. "
            "steps: a row for each trial, rank and step",
            metavar="NAME",
            choices=TABLES,
        ),
    ] = None
    out: Annotated[Path | None, opt.file("write to this file (default: the standard output)")] = None
    json: Annotated[bool, opt.flag("with --out: print as JSON what was written")] = False


def _run(given: opt.Given) -> int:
    options = Options(**given)
    if options.table is not None and options.to not in ("csv", "pandas"):
        raise UsageError(
            f"--table {options.table} is for --to csv and --to pandas. Leave it out with --to {options.to}."
        )
    if options.out is not None:
        require_file(options.out, f"results.{SUFFIXES.get(options.to, options.to)}")
    elif options.json:
        raise UsageError("--json tells what --out wrote, and the export itself goes to the standard output. Add --out.")

    from dlio_bench.reports.document.collection import has_runs, load_all, of_checkpoints
    from dlio_bench.reports.export import frames, junit, latex, measures, openmetrics, pytest_benchmark

    table, runs = options.table or TABLES[0], any(map(has_runs, options.results))
    documents = [] if runs else [*of_checkpoints(options.results).values()]
    pairs = [] if documents else load_all(options.results)
    results = [result for result, _ in pairs]
    if documents and table == "steps":
        raise UsageError(f"--table steps: checkpoints have no steps. Use --table {one_of(TABLES[:-1])}.")
    if documents and options.to == "latex":
        raise UsageError(
            "--to latex is for results of runs, and these are of checkpoints. Use --to csv --table metrics."
        )
    exported = measures.of_checkpoints(documents) if documents else measures.of_runs(results)
    if options.to in ("csv", "pandas"):
        made = frames.CHECKPOINT_TABLES[table](documents) if documents else frames.TABLES[table](pairs)
        text = {"csv": frames.csv, "pandas": frames.json_table}[options.to](made)
    elif options.to == "latex":
        text = latex.render(results)
    else:
        text = {
            "pytest-benchmark": pytest_benchmark.render,
            "junit": junit.of_results,
            "openmetrics": openmetrics.render,
            "prometheus": openmetrics.prometheus,
        }[options.to](exported)
    return _save(options, text, [each.result.digest for each in exported])


def _save(options: Options, text: str, digests: list[str]) -> int:
    """Print the text, or write it to the file that the options name."""
    from dlio_bench.reports.document.files import write_whole

    if options.out is None:
        print(text, end="")
        return 0
    write_whole(options.out, text.encode())
    if options.json:
        print(json.dumps({"to": options.to, "out": str(options.out), "bytes": len(text.encode()), "results": digests}))
    return 0


EXPORT = opt.Command(
    "export",
    "write results in the format of another tool",
    "Write results as a table, as benchmarks, as a test report or as metrics, for other tools.",
    Options,
    _run,
    EXAMPLES,
)
