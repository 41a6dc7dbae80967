"""The options of `dlio-bench reproduce`, and the call they lead to. Heavy imports wait until the command runs."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting

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


class Options(Struct, frozen=True, kw_only=True):
    """studies: none stands for all."""

    studies: Annotated[
        tuple[str, ...],
        opt.argument("STUDY", "studies, or files of studies (default: all); `list` shows them", nargs="*"),
    ] = ()
    size: Annotated[
        Literal["smoke", "laptop", "site"],
        opt.option(
            "smoke: what takes seconds. laptop (default): 1 to 3 hours on two cores. site: a cluster's allocation",
            choices=SIZES,
        ),
    ] = "laptop"
    against: Annotated[
        Path | None,
        opt.option(
            "start nothing: apply the criteria to the results in this folder, such as those of a real site",
            metavar="RESULTS",
            type=Path,
        ),
    ] = None
    out: Annotated[Path, opt.folder("folder of results and page (default: reproduced)")] = Path("reproduced")
    dry_run: Annotated[bool, opt.flag("print which commands would be started, and end")] = False
    json: opt.Json = False


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.studies import command

    options = Options(**given)
    if options.studies[:1] == (LIST,):
        if options.against is not None or options.dry_run:
            raise UsageError("`reproduce list` takes studies and --json alone. Leave the other options out.")
        return command.tell_list(options.studies[1:], json=options.json)
    return command.reproduce(options)


REPRODUCE = opt.Command(
    "reproduce",
    "reproduce published figures: run studies, and say which effects are there",
    "Carry out studies of published figures, and compare. Each gets a verdict: reproduced, or in part; within X %; "
    "effect seen, size differs; undecided; not seen; failed; not testable here. The same command goes on where it was "
    "stopped and measures nothing again.",
    Options,
    _run,
    EXAMPLES,
    process=starting.COMMANDS,
)
