"""`dlio-bench judge`: its options, and the judgement of results that are there already."""

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.harness.commands.results.show import Results
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground.outcome import Junit, Markdown, Outcome, Require

EXAMPLES = """\
examples:
  dlio-bench judge dlio-results/cdb-20260102-030405 --limits limits.toml
  dlio-bench judge delivered/ --limits limits.toml --junit junit.xml --json

exit status:
  0  every limit holds   1  a limit was missed, or --require    2  usage
  3  INVALID             4  a file not readable   5  damaged data
  6  undecided: too few trials, or a limit lies within an interval
"""


class Options(Struct, frozen=True, kw_only=True):
    """None: not given."""

    results: Results
    limits: Annotated[
        Path,
        opt.option("the limits, a TOML file (`dlio-bench help limits`)", metavar="FILE", type=Path, required=True),
    ]
    junit: Junit = None
    markdown: Markdown = None
    require: Require = None
    json: opt.Json = False


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.checkpoints import limited
    from dlio_bench.reports import kinds
    from dlio_bench.reports.document.collection import load_each
    from dlio_bench.reports.judging import text as judgement_text
    from dlio_bench.reports.judging.judge import judge
    from dlio_bench.reports.judging.judgement import as_json

    options = Options(**given)
    outcome = Outcome(options.junit, options.markdown, options.require)
    outcome.require_files()
    pairs, documents, unreadable = load_each(options.results)
    results = [result for result, _ in pairs]
    asked = limited.load(
        options.limits,
        {result.workload.name for result in results},
        {result.policy.alias or result.policy.name for result in results},
    )
    judgement = judge(kinds.all_measured(pairs, documents), asked, unreadable)
    outcome.write(results, judgement)
    print(as_json(judgement) if options.json else judgement_text.render(judgement), end="")
    return outcome.status(judgement)


JUDGE = opt.Command(
    "judge",
    "judge results against limits: PASS, FAIL, UNDECIDED or INVALID",
    "Judge the results of earlier runs against a file of limits. The same files give the same answer on every machine.",
    Options,
    _run,
    EXAMPLES,
)
