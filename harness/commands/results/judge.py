"""`dlio-bench judge`: its options, and the judgement of results that are there already."""

import argparse
from pathlib import Path

from dlio_bench.harness.commands.results.arguments import add_results
from dlio_bench.harness.ground.options import Commands
from dlio_bench.harness.ground.outcome import Outcome, add_outcome

EXAMPLES = """\
examples:
  dlio-bench judge dlio-results/cdb-20260102-030405 --limits limits.toml
  dlio-bench judge delivered/ --limits limits.toml --junit junit.xml --json

exit status:
  0  every limit holds   1  a limit was missed, or --require    2  usage
  3  INVALID             4  a file not readable   5  damaged data
  6  undecided: too few trials, or a limit lies within an interval
"""


def add_judge(commands: Commands) -> None:
    """`judge`."""
    parser = commands.add_parser(
        "judge",
        help="judge results against limits: PASS, FAIL, UNDECIDED or INVALID",
        description="Judge the results of earlier runs against a file of limits. The same files give the same answer "
        "on every machine.",
        epilog=EXAMPLES,
    )
    add_results(parser)
    parser.add_argument(
        "--limits", required=True, type=Path, metavar="FILE", help="the limits, a TOML file (`dlio-bench help limits`)"
    )
    add_outcome(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_judge(options: argparse.Namespace) -> int:
    """Print the judgement; the exit status is its."""
    from dlio_bench.harness.commands.checkpoints import limited
    from dlio_bench.reports.document.collection import load_each
    from dlio_bench.reports.judging import text as judgement_text
    from dlio_bench.reports.judging.judge import judge
    from dlio_bench.reports.judging.judgement import as_json

    outcome = Outcome(options.junit, options.markdown, options.require)
    outcome.require_files()
    pairs, documents, unreadable = load_each(options.results)
    results = [result for result, _ in pairs]
    asked = limited.load(
        options.limits,
        {result.workload.name for result in results},
        {result.policy.alias or result.policy.name for result in results},
    )
    judgement = judge(pairs, asked, unreadable, checkpoints=documents)
    outcome.write(results, judgement)
    print(as_json(judgement) if options.json else judgement_text.render(judgement), end="")
    return outcome.status(judgement)
