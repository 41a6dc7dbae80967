"""`report`: the page of results again, from their files."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.results.arguments import add_results
from dlio_bench.harness.ground.folders import require_file
from dlio_bench.harness.ground.options import Commands

if TYPE_CHECKING:
    from dlio_bench.reports.checkpoint.types import Document
    from dlio_bench.reports.document.types import Result
    from dlio_bench.reports.judging.judgement import Judgement
    from dlio_bench.reports.numbers.meetings import Steps

NAME = "report.html"
TITLE_END = b"dlio-bench</title>"  # of every page that this program writes
FORMATS = ("svg", "pdf", "png")  # as reports.view.static has them
HEAD = 100_000  # bytes within which a page has its title


def add_report(commands: Commands) -> None:
    """`report`."""
    parser = commands.add_parser(
        "report",
        help="write the HTML page of results again, from their files; one page for several runs or machines",
        description="Write one HTML page of all results named. Results that may not be compared share the page too; it "
        "says why they are not compared.",
        epilog="examples:\n"
        "  dlio-bench report dlio-results/cdb-20260102-030405\n"
        "  dlio-bench report old-machine new-machine --out both.html\n"
        "  dlio-bench report dlio-results/cdb-20260102-030405 --figures paper --format pdf\n",
    )
    add_results(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"write the page to this file (default: {NAME} in the folder of the RESULT if there is one, else in the "
        "current folder). A page of dlio-bench that is there is replaced, another file is not",
    )
    parser.add_argument(
        "--limits",
        type=Path,
        metavar="FILE",
        help="judge the results against the limits in this TOML file, and show it (default: the judgement that the "
        "folder of the RESULT holds); the exit status does not tell (dlio-bench judge)",
    )
    parser.add_argument(
        "--figures",
        type=Path,
        metavar="DIR",
        help="write the figures of the page into this folder instead, a file each, one column of a paper wide, and "
        "figures.tex with their captions; needs the extra 'figures'",
    )
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"of --figures (default: {FORMATS[0]})")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_report(options: argparse.Namespace) -> int:
    """Write the page. UsageError where it would replace a file that is no report."""
    from dlio_bench.reports import acceptance
    from dlio_bench.reports.checkpoint import view as checkpoint_view
    from dlio_bench.reports.coupling import document as couple
    from dlio_bench.reports.coupling import view as couple_view
    from dlio_bench.reports.document.collection import has_runs, load_all, of_checkpoints
    from dlio_bench.reports.run import html
    from dlio_bench.reports.view.formatting import plural

    if options.figures is not None:
        return _figures(options)
    path = options.out or _default(options.results)
    refuse_other_files(path)
    campaign = acceptance.of_folder(options.results[0]) if len(options.results) == 1 else None
    coupled, _ = couple.apart(options.results)
    if coupled:
        if len(options.results) > 1 or options.limits is not None:
            raise UsageError(
                f"'{coupled[0]}' is of a coupled workflow, which has a page of its own and no limits. Name it alone."
            )
        couple_view.view(couple.load(coupled[0])).write(path)
        count = 1
    elif (checkpoints := [*of_checkpoints(options.results).values()]) and campaign is None:
        if len(checkpoints) > 1 or options.limits is not None or any(map(has_runs, options.results)):
            raise UsageError(
                f"{plural(len(checkpoints), 'result')} of checkpoints: each has a page of its own, without limits "
                "(`dlio-bench judge` applies them). Name one alone."
            )
        checkpoint_view.view(checkpoints[0]).write(path)
        count = 1
    else:
        pairs = load_all(options.results)
        html.write(pairs, path, _judged(pairs, checkpoints, options), campaign)
        count = len(pairs)
    size = path.stat().st_size
    print(json.dumps({"report": str(path), "results": count, "bytes": size}) if options.json else f"report   {path}")
    return 0


def _figures(options: argparse.Namespace) -> int:
    """Write the figures instead of the page."""
    from dlio_bench.reports.document.collection import load_all
    from dlio_bench.reports.run import paper

    if options.out is not None or options.limits is not None:
        raise UsageError("--figures writes files into a folder and no page: leave out --out and --limits.")
    files = paper.write(load_all(options.results), options.figures, options.format)
    told = {"figures": str(options.figures), "files": files}
    print(json.dumps(told) if options.json else f"figures  {options.figures}: {', '.join(files)}")
    return 0


def _judged(
    pairs: "Sequence[tuple[Result, Steps]]", checkpoints: "Sequence[Document]", options: argparse.Namespace
) -> "Judgement | None":
    """By the limits that are named; else the judgement that the folder holds of all these results, as they were."""
    from dlio_bench.harness.commands.checkpoints import limited
    from dlio_bench.reports.document.marks import ALTERED
    from dlio_bench.reports.judging import judge, judgement

    if options.limits is not None:
        return judge.judge(pairs, limited.load(options.limits), checkpoints=checkpoints)
    if any(ALTERED in result.marks for result, _ in pairs):
        return None
    digests = [result.digest for result, _ in pairs] + [document.digest for document in checkpoints]
    return judgement.of_folder(options.results[0], digests) if len(options.results) == 1 else None


def _default(results: list[Path]) -> Path:
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
