"""The options of `dlio-bench reproduce`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.options import Commands

LIST = "list"
SIZES = ("smoke", "laptop", "site")
EXAMPLES = """\
examples:
  dlio-bench reproduce list
  dlio-bench reproduce --size laptop --dry-run
  dlio-bench reproduce hepcnnb-shuffle --out shuffle
  dlio-bench reproduce --size smoke --json
  dlio-bench reproduce hepcnnb-shuffle --against results-of-our-cluster

exit status:
  0  no effect is missing      1  an effect is not seen      2  usage
  3  an INVALID result         4  a command failed           5  damaged data
  6  undecided: an interval lies on both sides, or of one trial
"""


def add_reproduce(commands: Commands) -> None:
    """`reproduce`."""
    parser = commands.add_parser(
        "reproduce",
        help="reproduce published figures: run studies, and say which effects are there",
        description="Carry out studies of published figures, and compare. Each gets a verdict: reproduced, or in part; "
        "effect seen, size differs; undecided; not seen; failed; not testable here. The same command goes on where it "
        "was stopped and measures nothing again.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "studies",
        nargs="*",
        metavar="STUDY",
        help="studies, or files of studies (default: all); `list` shows them",
    )
    parser.add_argument(
        "--size",
        choices=SIZES,
        default="laptop",
        help="smoke: what takes seconds. laptop (default): an hour on two cores. site: a cluster's allocation",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="RESULTS",
        help="start nothing: apply the criteria to the results in this folder, such as those of a real site",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of results and page (default: reproduced)")
    parser.add_argument("--dry-run", action="store_true", help="print which commands would be started, and end")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_reproduce(options: argparse.Namespace) -> int:
    """List, carry out, or judge studies. UsageError."""
    from dlio_bench.harness.commands.studies import command

    names = list(options.studies)
    if names[:1] == [LIST]:
        if options.against is not None or options.dry_run:
            raise UsageError("`reproduce list` takes studies and --json alone. Leave the other options out.")
        return command.tell_list(names[1:], json=options.json)
    given = command.Options(
        tuple(names), options.size, options.against, options.out or Path("reproduced"), options.dry_run, options.json
    )
    return command.reproduce(given)
