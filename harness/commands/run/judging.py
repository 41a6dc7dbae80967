"""The limits of a run: read before it, and applied to what it measured."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.checkpoints import limited
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.reports import kinds
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.judging.judgement import NAME, Judgement, as_json
from dlio_bench.reports.judging.limits import Limits
from dlio_bench.reports.numbers.meetings import Steps


def with_limits(options: Options) -> tuple[Options, Limits | None]:
    """The limits that --limits names, and the options with the trials that they ask for, unless the user gave some."""
    if options.limits is None:
        if options.require is not None:
            raise UsageError(f"--require {options.require} needs limits to judge by. Name their file with --limits.")
        return options, None
    asked = limited.load(options.limits)
    return replace(options, trials=options.trials or asked.settings.trials), asked


def require_covered(request: Request, asked: Limits) -> None:
    """UsageError where no limit is for what the run will measure, or the run has fewer trials than the limits ask."""
    options = request.options
    if options.trials is not None and options.trials < asked.settings.trials:
        raise UsageError(
            f"--trials {options.trials}: '{options.limits}' asks for {asked.settings.trials}. Give --trials "
            f"{asked.settings.trials}, or leave it out."
        )
    per_node = options.ranks_per_node * len(request.models)
    scales = [f"{nodes}x{per_node}" for nodes in options.nodes]
    rows = [(name, row.name) for name, row in request.readers.items()]
    if not any(
        limit.covers(options.workload, names, scale) for limit in asked.limits for names in rows for scale in scales
    ):
        raise UsageError(
            f"'{options.limits}' has no limit for {options.workload} with {', '.join(request.readers)} at "
            f"{', '.join(scales)} (nodes x ranks of a node). Add a table, such as "
            f'[{options.workload}.{next(iter(request.readers))}."{scales[0]}"], or run without --limits.'
        )


def judged(finished: Sequence[tuple[Result, Steps]], asked: Limits, folder: Path) -> Judgement:
    """Judge what was measured, by the limits that are for it, and write judgement.json into the folder of the run."""
    judgement = judge.judge(kinds.each(finished), asked, partial=True)
    write_whole(folder / NAME, as_json(judgement).encode())
    return judgement
