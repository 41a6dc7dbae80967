"""`report`: the page of results again, from their files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.results.show import Results
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground.folders import require_file

if TYPE_CHECKING:
    from dlio_bench.reports.checkpoint.types import Document
    from dlio_bench.reports.document.types import Result
    from dlio_bench.reports.judging.judgement import Judgement
    from dlio_bench.reports.numbers.meetings import Steps

NAME = "report.html"
TITLE_END = b"dlio-bench</title>"  # of every page that this program writes
FORMATS = ("svg", "pdf", "png")  # as reports.view.static has them
HEAD = 100_000  # bytes within which a page has its title


EXAMPLES = """\
examples:
  dlio-bench report dlio-results/cdb-20260102-030405
  dlio-bench report old-machine new-machine --out both.html
  dlio-bench report dlio-results/cdb-20260102-030405 --figures paper --format pdf
"""


class Options(Struct, frozen=True, kw_only=True):
    """None: not given."""

    results: Results
    out: Annotated[
        Path | None,
        opt.file(
            f"write the page to this file (default: {NAME} in the folder of the RESULT if there is one, else in the "
            "current folder). A page of dlio-bench that is there is replaced, another file is not"
        ),
    ] = None
    limits: Annotated[
        Path | None,
        opt.file(
            "judge the results against the limits in this TOML file, and show it (default: the judgement that the "
            "folder of the RESULT holds); the exit status does not tell (dlio-bench judge)"
        ),
    ] = None
    figures: Annotated[
        Path | None,
        opt.folder(
            "write the figures of the page into this folder instead, a file each, one column of a paper wide, and "
            "figures.tex with their captions; needs the extra 'figures'"
        ),
    ] = None
    format: Annotated[str, opt.option(f"of --figures (default: {FORMATS[0]})", choices=FORMATS)] = FORMATS[0]
    json: opt.Json = False


def _run(given: opt.Given) -> int:
    from dlio_bench.reports import acceptance
    from dlio_bench.reports.document.collection import has_runs, load_all, of_checkpoints
    from dlio_bench.reports.run import html
    from dlio_bench.reports.view import kinds

    options = Options(**given)
    if options.figures is not None:
        return _figures(options, options.figures)
    path = options.out or _default(options.results)
    refuse_other_files(path)
    campaign = acceptance.of_folder(options.results[0]) if len(options.results) == 1 else None
    shown, others = kinds.split_kinds(options.results)
    checkpoints = of_checkpoints(others)
    if campaign is None and (own := shown or kinds.split_kinds([*checkpoints])[0]):
        if len(options.results) > 1 or len(own) > 1 or options.limits is not None or any(map(has_runs, others)):
            raise UsageError(
                f"'{next(iter(own))}' has a page of its own, without limits. Name it alone; `dlio-bench judge` applies "
                "limits to checkpoints."
            )
        [(_, view)] = own.values()
        view.write(path)
        count = 1
    else:
        pairs = load_all(options.results)
        html.write(pairs, path, _judgement(pairs, [*checkpoints.values()], options), campaign)
        count = len(pairs)
    size = path.stat().st_size
    print(json.dumps({"report": str(path), "results": count, "bytes": size}) if options.json else f"report   {path}")
    return 0


def _figures(options: Options, folder: Path) -> int:
    """Write the figures instead of the page."""
    from dlio_bench.reports.document.collection import load_all
    from dlio_bench.reports.run import paper

    if options.out is not None or options.limits is not None:
        raise UsageError("--figures writes files into a folder and no page: leave out --out and --limits.")
    files = paper.write(load_all(options.results), folder, options.format)
    told = {"figures": str(folder), "files": files}
    print(json.dumps(told) if options.json else f"figures  {folder}: {', '.join(files)}")
    return 0


def _judgement(
    pairs: "Sequence[tuple[Result, Steps]]", checkpoints: "Sequence[Document]", options: Options
) -> "Judgement | None":
    """By the limits that are named; else the judgement that the folder holds of all these results, as they were."""
    from dlio_bench.harness.commands.checkpoints import limited
    from dlio_bench.reports import kinds
    from dlio_bench.reports.document.marks import ALTERED
    from dlio_bench.reports.judging import judge, judgement

    if options.limits is not None:
        return judge.judge(kinds.all_measured(pairs, checkpoints), limited.load(options.limits))
    if any(ALTERED in result.marks for result, _ in pairs):
        return None
    digests = [result.digest for result, _ in pairs] + [document.digest for document in checkpoints]
    return judgement.of_folder(options.results[0], digests) if len(options.results) == 1 else None


def _default(results: Sequence[Path]) -> Path:
    if len(results) > 1:
        return Path(NAME)
    return (results[0] if results[0].is_dir() else results[0].parent) / NAME


def refuse_other_files(path: Path) -> None:
    """UsageError if the page would replace something that is not such a page."""
    require_file(path, NAME)
    if not path.exists():
        return
    with path.open("rb") as file:
        if TITLE_END not in file.read(HEAD):
            raise UsageError(f"'{path}' is there already, and is no report. Name another file with --out.")


REPORT = opt.Command(
    "report",
    "write the HTML page of results again, from their files; one page for several runs or machines",
    "Write one HTML page of all results named. Results that may not be compared share the page too; it says why they "
    "are not compared.",
    Options,
    _run,
    EXAMPLES,
)
