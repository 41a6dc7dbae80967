"""The command line: parsing and exit statuses, nothing else. Heavy imports wait until a command needs them."""

import argparse
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, cast

from msgspec import Struct

from dlio_bench import signals
from dlio_bench.errors import BenchError, EnvironmentFailure, JobEnded, OutOfTime, UsageError, out_of_memory
from dlio_bench.harness.cluster import life, stacks, walltime
from dlio_bench.harness.cluster.variables import STARTED
from dlio_bench.harness.commands.acceptance.options import ACCEPT
from dlio_bench.harness.commands.bench_readers.options import BENCH_READERS
from dlio_bench.harness.commands.calibration.options import CALIBRATE
from dlio_bench.harness.commands.capacity.options import CAPACITY
from dlio_bench.harness.commands.checkpoints.options import CHECKPOINT
from dlio_bench.harness.commands.coupling.options import COUPLE
from dlio_bench.harness.commands.generation.options import GENERATE, INDEX, PLAN_DATA, VERIFY
from dlio_bench.harness.commands.job_script.options import SBATCH
from dlio_bench.harness.commands.parser import Parser, join_launcher_args
from dlio_bench.harness.commands.results.compare import COMPARE
from dlio_bench.harness.commands.results.export import EXPORT
from dlio_bench.harness.commands.results.judge import JUDGE
from dlio_bench.harness.commands.results.report import REPORT
from dlio_bench.harness.commands.results.show import SHOW
from dlio_bench.harness.commands.results.watch import WATCH
from dlio_bench.harness.commands.run.options import EXIT_STATUSES, MAIN_EXAMPLE, RUN
from dlio_bench.harness.commands.storage_bench.options import STORAGE
from dlio_bench.harness.commands.studies.options import REPRODUCE
from dlio_bench.harness.commands.tracing.options import TRACE
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting
from dlio_bench.harness.ground.folders import require_local
from dlio_bench.harness.ground.subcommands import MESSAGE, going_on
from dlio_bench.harness.machine.mounts import explain_os_error
from dlio_bench.harness.machine.waits import watch_signals
from dlio_bench.harness.simulator.options import SIMULATE
from dlio_bench.units import format_seconds
from dlio_bench.wrapping import printable

JOINING = ("run", "generate", "storage", "calibrate")  # may take processes that are there for their ranks
IN_PARTS = ("run", "capacity", "accept", "reproduce")  # start no part that cannot be over in time


class ListOptions(Struct, frozen=True, kw_only=True):
    """The options of `list`."""

    json: opt.Json = False


class DoctorOptions(Struct, frozen=True, kw_only=True):
    """The options of `doctor`."""

    data: Annotated[Path | None, opt.folder("folder whose file system is examined (default: the dataset cache)")] = None
    json: opt.Json = False


class HelpOptions(Struct, frozen=True, kw_only=True):
    """The options of `help`."""

    page: Annotated[
        str | None, opt.argument("NAME", "such as limits, limits.toml or run (default: list all)", nargs="?")
    ] = None


def parser() -> Parser:
    """All commands and their options."""
    top = Parser(
        prog="dlio-bench",
        description="How fast does deep-learning I/O run here, and what would make it faster?",
        epilog=f"{MAIN_EXAMPLE}\n{EXIT_STATUSES}",
    )
    top.add_argument("--version", action="store_true", help="print the version and end")
    made = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in DECLARED:
        command.add(cast("opt.Commands", made))  # a Parser is an ArgumentParser
    return top


def _list(given: opt.Given) -> int:
    from dlio_bench.harness.commands.listing import listing, render

    document = listing()
    print(json.dumps(document, indent=1) if "json" in given else render(document))
    return 0


def _doctor(given: opt.Given) -> int:
    from msgspec.structs import asdict

    from dlio_bench.harness.commands.doctor import examine, exit_status, render
    from dlio_bench.harness.ground.folders import cache_folder

    options = DoctorOptions(**given)
    findings = examine(options.data or cache_folder(None))
    print(json.dumps([asdict(finding) for finding in findings], indent=1) if options.json else render(findings))
    return exit_status(findings)


def _help(given: opt.Given) -> int:
    from dlio_bench.harness.commands import pages

    page = HelpOptions(**given).page
    if page in COMMANDS:
        parser().parse_args([page, "--help"])
    print(pages.list_pages() if page is None else pages.page(page).rstrip("\n"))
    return 0


LIST = opt.Command(
    "list",
    "list workloads, their step times, pipelines and sources; readers and orders",
    "Show every name that `run` takes, and where each number comes from.",
    ListOptions,
    _list,
)
DOCTOR = opt.Command(
    "doctor",
    "check what is installed and what the machine can do; name a fix for what is missing",
    "Check Python, packages, MPI, launchers and the file system of a folder. Changes nothing.",
    DoctorOptions,
    _doctor,
)
HELP = opt.Command(
    "help",
    "print a page of the documentation, an example file, or the options of a command",
    "Print a page of the documentation as Markdown, an example file, or the options of a command.",
    HelpOptions,
    _help,
)
DECLARED = (
    RUN, GENERATE, VERIFY, INDEX, PLAN_DATA, STORAGE, BENCH_READERS, CALIBRATE, CAPACITY, COUPLE, CHECKPOINT, SIMULATE,
    ACCEPT, REPRODUCE, SBATCH, WATCH, SHOW, COMPARE, EXPORT, JUDGE, REPORT, TRACE, LIST, DOCTOR, HELP,
)  # fmt: skip
STARTING = [command.name for command in DECLARED if command.process]  # ranks, or commands that do
COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {command.name: command.call for command in DECLARED}


NEED_LESS = {  # command -> options that need less memory
    "run": "a smaller --batch, --staging, --tiers or --max-data, or fewer --ranks-per-node",
    "generate": "fewer --workers or --ranks-per-node",
    "verify": "fewer --workers",
    "index": "fewer files in the folder",
    "plan-data": "fewer --nodes",
    "storage": "a smaller --sample-size, or fewer --threads or --ranks",
    "bench-readers": "a smaller --size, or fewer --ranks or --threads",
    "capacity": "a smaller --batch, --staging or --max-data, or fewer --ranks-per-node",
    "couple": "a smaller --size, or fewer --steps or --consumers",
    "checkpoint": "fewer --ranks-per-node",
    "simulate": "fewer --nodes or --epochs",
    "accept": "a smaller batch, staging or tiers in the plan, or fewer ranks_per_node",
    "reproduce": "a smaller --size, or fewer studies at a time",
    "calibrate": "a smaller --batch or --sample-bytes, or fewer --threads or --nodes",
}
# texts of errors: ld.so cannot load a library, CPython cannot start a thread
REFUSED = ("failed to map segment", "Cannot allocate memory", "cannot allocate memory", "can't start new thread")
OTHERS = "fewer other programs on this machine"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Prints an error as one paragraph, and returns the documented status."""
    signals.listen()
    stacks.on_signal()
    words = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 still gets its numbers
    try:
        with watch_signals(_give_up):
            return _run_reporting(argv, words)
    finally:
        try:
            _flush()
        except OSError:  # Python would try again as it ends, complain in its own words, and end with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_reporting(argv: Sequence[str] | None, words: Sequence[str]) -> int:
    try:
        status = _command(argv)
        _flush()
    except KeyboardInterrupt:
        return _report_interrupt(words)
    except BrokenPipeError:  # nobody reads our output any more
        return EnvironmentFailure.status
    except Exception as error:  # noqa: BLE001 - every error becomes a message
        if signals.is_pending():  # an extension module that loads turns an interruption into another error
            return _report_interrupt(words)
        failure = _failure(error, words)
        return _complain(str(failure), failure.status)
    return status


def _flush() -> None:
    if sys.stdout is not None:  # None: the command was started without
        sys.stdout.flush()


def _report_interrupt(argv: Sequence[str]) -> int:
    signals.mark_handled()
    message = f"{signals.interrupt_reason()}: the ranks have ended, and no unfinished result was kept."
    if any(word in argv for word in STARTING) and (resume := going_on(words=argv)):
        message += f" Go on with: {resume}"
    return _complain(message, EnvironmentFailure.status)


def _give_up(number: int, at: str) -> None:
    """End the command while its main thread waits for storage that does not answer."""
    _complain(
        f"{signals.interrupt_reason(number)} while waiting for {at}, which does not answer.", EnvironmentFailure.status
    )
    os._exit(EnvironmentFailure.status)


def _failure(error: Exception, argv: Sequence[str]) -> BenchError:
    """The message for an error that ended a command. Other errors than the user's and the machine's are defects."""
    if isinstance(error, JobEnded):
        resume = going_on(words=argv)
        return EnvironmentFailure(f"{error} Go on with: {resume}" if resume else str(error))
    if isinstance(error, BenchError):
        return error
    if isinstance(error, OSError):
        return EnvironmentFailure(explain_os_error(error))
    if isinstance(error, MemoryError):
        return out_of_memory(error, "here", next((NEED_LESS[word] for word in argv if word in NEED_LESS), OTHERS))
    if any(text in str(error) for text in REFUSED):
        return EnvironmentFailure(
            f"{str(error).rstrip('.')}. This machine gives the process no more memory, or no more threads: see ulimit "
            "-a and what else runs here."
        )
    with tempfile.NamedTemporaryFile("w", prefix="dlio-bench-defect-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    return EnvironmentFailure(
        f"{type(error).__name__}: {error}. That is a defect of dlio-bench; its trace is in {file.name}."
    )


def _command(argv: Sequence[str] | None) -> int:
    options, unknown = parser().parse_known_args(join_launcher_args(sys.argv[1:] if argv is None else argv))
    if unknown:
        parser().refuse(unknown, options.command)
    if options.version:
        from dlio_bench import __version__

        print(f"dlio-bench {__version__}")
        return 0
    if options.command is None:
        parser().print_help(sys.stderr)
        return UsageError.status
    _require_local(options)
    starting.settle(options)
    if options.command not in STARTING:
        return COMMANDS[options.command](options)
    if STARTED not in os.environ:
        if getattr(options, "launcher", None) == "none":
            return _join(options.command, sys.argv[1:] if argv is None else argv)
        if (others := life.processes_started_together(os.environ)) > 1:
            return _refuse_copies(others, joins=options.command in JOINING)
    kept = walltime.MARGIN_SECONDS if options.command in IN_PARTS else walltime.LAST_SECONDS
    walltime.settle(getattr(options, "walltime", None), kept)
    left = walltime.seconds_left()
    launches = not getattr(options, "dry_run", False)
    if launches and left is not None and left <= walltime.LAST_SECONDS:
        raise OutOfTime(
            f"The time of this job does not suffice: {format_seconds(max(0.0, left))} are left, and "
            f"{format_seconds(walltime.LAST_SECONDS)} are kept back for an end in good order. Nothing was started. In "
            f"another job, go on with: {going_on(words=sys.argv[1:] if argv is None else argv)}"
        )
    with signals.alarm(left - walltime.LAST_SECONDS if launches and left is not None else None):
        return COMMANDS[options.command](options)


def _require_local(options: argparse.Namespace) -> None:
    """UsageError for an option that names an object store where a file or a folder is wanted."""
    places = {"data", "folder"} | ({"out"} if options.command == "generate" else set())  # a dataset's: their own errors
    for name, value in vars(options).items():
        if isinstance(value, Path) and name not in places:
            require_local(value, f"--{name.replace('_', '-')}")


def _join(command: str, argv: Sequence[str]) -> int:
    if command == "capacity":
        if life.launcher_rank():  # rank 0 speaks
            return UsageError.status
        raise UsageError("capacity starts other numbers of ranks again and again, which --launcher none cannot do.")
    from dlio_bench.harness.cluster import joined

    return joined.take_part(argv)


def _refuse_copies(count: int, *, joins: bool) -> int:
    """UsageError; on the other copies of this command the status alone, so that one of them speaks.

    joins: this command may take copies for its ranks.
    """
    if life.launcher_rank():
        life.after_the_first()
        return UsageError.status
    raise UsageError(
        f"A launcher has started this command {count} times, and each would start ranks of its own. Start it once, and "
        f"it starts its ranks{'; or add --launcher none, and the processes that are there become the ranks' * joins}."
    )


def _complain(message: str, status: int) -> int:
    line = "\r\x1b[K" if sys.stderr.isatty() else ""
    shown = "\n".join(map(printable, message.split("\n")))  # it may quote a file
    if kept := os.environ.get(MESSAGE):
        with suppress(OSError):
            Path(kept).write_text(shown)
    print(f"{line}dlio-bench: {shown}", file=sys.stderr)
    return status
