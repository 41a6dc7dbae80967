"""`dlio-bench show`, and what it and its neighbours have in common. Heavy imports wait until a command runs."""

import json
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Struct

from dlio_bench.harness.ground import options as opt

Results: TypeAlias = Annotated[
    tuple[Path, ...],
    opt.argument(
        "RESULT", "a result.json, or a folder with results below it, such as that of a run", nargs="+", type=Path
    ),
]
EXAMPLES = """\
examples:
  dlio-bench show dlio-results/cdb-20260102-030405
  dlio-bench show dlio-results/cdb-20260102-030405 --verbose
  dlio-bench show first/naive-8x1 second/prefetch-8x1 --json
"""


class Options(Struct, frozen=True, kw_only=True):
    """The options of `show`."""

    results: Results
    json: opt.Json = False
    verbose: Annotated[bool, opt.flag("print everything, not one screen with the answer")] = False


def _run(given: opt.Given) -> int:
    from dlio_bench.reports.comparing import repetition
    from dlio_bench.reports.document.collection import has_runs, load_all, of_checkpoints
    from dlio_bench.reports.document.typed import to_json
    from dlio_bench.reports.run import text
    from dlio_bench.reports.view import kinds

    options = Options(**given)
    shown, others = kinds.split_kinds(options.results)
    shown |= kinds.split_kinds([*of_checkpoints(others)])[0]
    runs = [path for path in others if has_runs(path)]
    results = [result for result, _ in load_all(runs)] if runs else []
    if options.json:
        print(json.dumps([to_json(document) for document in (*(each for each, _ in shown.values()), *results)]))
        return 0
    print(
        "\n".join(view.text(verbose=options.verbose) for _, view in shown.values()), end="\n" * bool(shown and results)
    )
    if results:
        print(f"{text.render(results, verbose=options.verbose)}{repetition.describe_differences(results)}", end="")
    return 0


SHOW = opt.Command(
    "show",
    "print results again, from their files",
    "Print what `run` printed, from the files that it wrote, or results of several runs side by side.",
    Options,
    _run,
    EXAMPLES,
)
