"""The options of the commands on results, and the calls they lead to. Heavy imports wait until the command runs."""

import argparse
import json
from pathlib import Path

from dlio_bench.harness.ground.options import Commands


def add_show(commands: Commands) -> None:
    """`show`."""
    parser = commands.add_parser(
        "show",
        help="print results again, from their files",
        description="Print what `run` printed, from the files that it wrote, or results of several runs side by side.",
        epilog="examples:\n"
        "  dlio-bench show dlio-results/cdb-20260102-030405\n"
        "  dlio-bench show dlio-results/cdb-20260102-030405 --verbose\n"
        "  dlio-bench show first/naive-8x1 second/prefetch-8x1 --json\n",
    )
    add_results(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--verbose", action="store_true", help="print everything, not one screen with the answer")


def run_show(options: argparse.Namespace) -> int:
    """Print results."""
    from dlio_bench.reports.checkpoint import view as checkpoint_view
    from dlio_bench.reports.comparing import repetition
    from dlio_bench.reports.coupling import document as couple
    from dlio_bench.reports.coupling import view as couple_view
    from dlio_bench.reports.document.collection import has_runs, load_all, of_checkpoints
    from dlio_bench.reports.document.typed import to_json
    from dlio_bench.reports.run import text

    coupled, others = couple.apart(options.results)
    runs = [path for path in others if has_runs(path)]
    results = [result for result, _ in load_all(runs)] if runs else []
    workflows, checkpoints = [couple.load(path) for path in coupled], [*of_checkpoints(others).values()]
    if workflows or checkpoints:
        if options.json:
            print(json.dumps([to_json(document) for document in (*workflows, *checkpoints, *results)]))
            return 0
        texts = [couple_view.view(document).text(verbose=options.verbose) for document in workflows]
        texts += [checkpoint_view.view(document).text(verbose=options.verbose) for document in checkpoints]
        print("\n".join(texts), end="\n" if results else "")
        if not results:
            return 0
    if options.json:
        print(json.dumps([to_json(result) for result in results]))
    else:
        print(f"{text.render(results, verbose=options.verbose)}{repetition.told(results)}", end="")
    return 0


def add_results(parser: argparse.ArgumentParser) -> None:
    """RESULT..., of the commands on results."""
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULT",
        help="a result.json, or a folder with results below it, such as that of a run",
    )
