"""The options of `dlio-bench accept`, and the call they lead to. Heavy imports wait until the command runs."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError, unknown
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting
from dlio_bench.harness.ground.outcome import Require

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


class Options(Struct, frozen=True, kw_only=True):
    """`example` needs no other."""

    plan: Annotated[Path, opt.argument("PLAN.toml", "the plan of the acceptance", nargs="?", type=Path)]
    out: Annotated[Path, opt.folder("folder that will be handed over; made if absent")]
    example: Annotated[
        str | None,
        opt.option(
            f"write an example to PLAN.toml, or print it if you name no file: {', '.join(SHIPPED)}", metavar="NAME"
        ),
    ] = None
    require: Require = None
    dry_run: Annotated[bool, opt.flag("print what would be done, and end")] = False
    json: Annotated[bool, opt.flag("print JSON: the judgement, or the plan of --dry-run")] = False


def _run(given: opt.Given) -> int:
    if "example" in given:
        return _example(given["example"], given.get("plan"))
    if not {"plan", "out"} <= given.keys():
        what = "the folder that you will hand over" if "plan" in given else "the plan: dlio-bench accept PLAN.toml"
        raise UsageError(f"Name {what} --out DIR. `dlio-bench accept --example one-machine` shows a plan.")
    from dlio_bench.harness.commands.acceptance.command import accept

    return accept(Options(**given))


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


ACCEPT = opt.Command(
    "accept",
    "carry out a whole acceptance: data, storage, every run, the judgement, one folder to hand over",
    "Print what the plan asks for and about how long it takes; make the data, measure, judge. The same command goes on "
    "where it was stopped, and measures nothing again.",
    Options,
    _run,
    EXAMPLES,
    process=starting.COMMANDS,
)
