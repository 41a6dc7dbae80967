"""The options of `dlio-bench accept`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from importlib.resources import files
from pathlib import Path

from dlio_bench.errors import UsageError, unknown
from dlio_bench.harness.ground.options import Commands
from dlio_bench.harness.ground.outcome import Outcome, add_require

EXAMPLES = """\
examples:
  dlio-bench accept plan.toml --example one-machine
  dlio-bench accept plan.toml --out delivered --dry-run
  dlio-bench accept plan.toml --out delivered

exit status:
  0  every limit holds   1  a limit was missed, --require 2  usage
  3  INVALID             4  not measured, interrupted    5  damaged data
  6  undecided: too few trials, or a limit lies within an interval
"""
SHIPPED = ("one-machine", "slurm", "mlperf-storage")


def add_accept(commands: Commands) -> None:
    """`accept`."""
    parser = commands.add_parser(
        "accept",
        help="carry out a whole acceptance: data, storage, every run, the judgement, one folder to hand over",
        description="Print what the plan asks for and about how long it takes; make the data, measure, judge. The same "
        "command goes on where it was stopped, and measures nothing again.",
        epilog=EXAMPLES,
    )
    parser.add_argument("plan", nargs="?", type=Path, metavar="PLAN.toml", help="the plan of the acceptance")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder that will be handed over; made if absent")
    parser.add_argument(
        "--example",
        metavar="NAME",
        help=f"write an example to PLAN.toml, or print it if you name no file: {', '.join(SHIPPED)}",
    )
    add_require(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and end")
    parser.add_argument("--json", action="store_true", help="print JSON: the judgement, or the plan of --dry-run")


def run_accept(options: argparse.Namespace) -> int:
    """Carry out a plan, or print an example."""
    if options.example is not None:
        return _example(options.example, options.plan)
    if options.plan is None or options.out is None:
        what = "the plan: dlio-bench accept PLAN.toml" if options.plan is None else "the folder that you will hand over"
        raise UsageError(f"Name {what} --out DIR. `dlio-bench accept --example one-machine` shows a plan.")
    from dlio_bench.harness.commands.acceptance.command import Options, accept

    outcome = Outcome(require=options.require)
    return accept(Options(options.plan, options.out, options.dry_run, options.json, outcome))


def _example(name: str, path: Path | None) -> int:
    if name not in SHIPPED:
        raise unknown("--example", name, SHIPPED)
    text = (files("dlio_bench.harness.commands.acceptance") / "plans" / f"{name}.toml").read_text()
    if path is None:
        print(text, end="")
        return 0
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"'{path}' exists. Name a new file for the example, or remove this one.") from None
    print(f"{path}: an example of a plan. See what it would do: dlio-bench accept {path} --out DIR --dry-run")
    return 0
