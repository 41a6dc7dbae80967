"""The command line: parsing and exit statuses, nothing else. Heavy imports wait until a command needs them."""

import argparse
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from dlio_bench.errors import BenchError, EnvironmentFailure, UsageError
from dlio_bench.harness.generation import arguments as generation
from dlio_bench.harness.simulator import arguments as simulator
from dlio_bench.units import parse_bytes

EXIT_STATUSES = """\
exit status:
  0  pass           2  usage             4  launch or environment failure, interrupted
  1  limit missed   3  INVALID result    5  data verification failed
"""

MAIN_EXAMPLE = """\
examples:
  dlio-bench run cdb --nodes 8 --reader prefetch
  dlio-bench run cosmoflow --nodes 1,2,4 --reader naive,shuffled,prefetch --compute none
  dlio-bench run imagenet --nodes 2 --tiny
"""


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="dlio-bench",
        description="How fast does deep-learning I/O run here, and what would make it faster?",
        epilog=f"{MAIN_EXAMPLE}\n{EXIT_STATUSES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version and end")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_run(commands)
    generation.add_generate(commands)
    generation.add_verify(commands)
    generation.add_index(commands)
    generation.add_plan_data(commands)
    simulator.add_simulate(commands)
    listing = commands.add_parser("list", help="workloads, their step times and sources; readers")
    listing.add_argument("--json", action="store_true", help="print JSON")
    doctor = commands.add_parser(
        "doctor", help="what is installed and what the machine can do; a fix for what is missing"
    )
    doctor.add_argument(
        "--data", type=Path, metavar="DIR", help="folder whose file system is examined (default: the dataset cache)"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    return top


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="measure one workload with one or more readers",
        description="Make a small dataset if none is given, launch the ranks, measure, and write result and report.",
        epilog=f"{MAIN_EXAMPLE}\n{EXIT_STATUSES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("workload", metavar="WORKLOAD", help="hepcnnb, cdb, cosmoflow or imagenet (see `dlio-bench list`)")
    scale = run.add_argument_group("scale")
    scale.add_argument(
        "--nodes", type=_counts, default=(1,), metavar="N[,N...]", help="nodes; several counts are compared (default 1)"
    )
    scale.add_argument("--ranks-per-node", type=int, default=1, metavar="R", help="ranks (trainers) a node (default 1)")
    scale.add_argument(
        "--launcher", metavar="NAME", help="local, mpirun, srun, jsrun, flux or pals (default: from the environment)"
    )
    scale.add_argument(
        "--memory-per-node",
        type=parse_bytes,
        metavar="SIZE",
        help="memory budget of a node (default: the machine's, shared by virtual nodes)",
    )
    data = run.add_argument_group("data")
    data.add_argument("--data", type=Path, metavar="DIR", help="an existing dataset (default: one is made and kept)")
    data.add_argument("--variant", metavar="NAME", help="layout variant of the workload (see `dlio-bench list`)")
    data.add_argument(
        "--max-data", type=parse_bytes, metavar="SIZE", help="most that is made when no --data is given (default 5GB)"
    )
    data.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="where made datasets are kept (default $DLIO_BENCH_CACHE or ~/.cache/dlio-bench)",
    )
    data.add_argument(
        "--tiny", action="store_true", help="shrunken samples, for a smoke test in seconds: never a measurement"
    )
    how = run.add_argument_group("readers and steps")
    how.add_argument(
        "--reader",
        type=_names,
        default=("prefetch",),
        metavar="NAME[,NAME...]",
        help="naive, shuffled, prefetch (see `dlio-bench list`; default prefetch)",
    )
    how.add_argument(
        "--batch",
        type=int,
        metavar="B",
        help="samples a rank and step (default: the published batch, less where data are few)",
    )
    how.add_argument(
        "--epochs", type=int, metavar="E", help="epochs a trial (default: 1, more where they are shorter than 16 steps)"
    )
    how.add_argument(
        "--compute", default="emulate", metavar="HOW", help="none, emulate or emulate:DEVICE (default emulate:v100)"
    )
    how.add_argument(
        "--sync", default="step", metavar="WHEN", help="ranks meet at every step, epoch or none (default step)"
    )
    how.add_argument(
        "--threads",
        type=int,
        metavar="T",
        help="reading threads a rank of readers that read ahead (default: up to 4, as the cores allow)",
    )
    how.add_argument(
        "--staging", type=parse_bytes, metavar="SIZE", help="staging buffer a rank (default 256MB, or two batches)"
    )
    trust = run.add_argument_group("trials and trust")
    trust.add_argument("--trials", type=int, metavar="T", help="timed trials (default 5; 1 with --tiny)")
    trust.add_argument("--warmup-trials", type=int, metavar="W", help="trials before, kept but not counted (default 1)")
    trust.add_argument(
        "--cache",
        default="cold",
        metavar="MODE",
        help="page cache before a trial: cold, cold-epochs (before each epoch too), warm, as-is (default cold)",
    )
    trust.add_argument("--seed", type=int, metavar="S", help="seed of the order (default: a new one, recorded)")
    trust.add_argument(
        "--no-verify", dest="verify", action="store_false", help="leave out the untimed pass that checks every byte"
    )
    output = run.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of results and report (default dlio-results/TIME-WORKLOAD)"
    )
    output.add_argument("--dry-run", action="store_true", help="say what would be done, and end")
    output.add_argument("--json", action="store_true", help="print the results as JSON")


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise UsageError("--reader needs a name, such as --reader naive,prefetch.")
    if len(set(names)) != len(names):
        raise UsageError(f"--reader '{value}' names a reader twice. Name each once.")
    return names


def _counts(value: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise UsageError(
            f"--nodes '{value}' is not a count. Write a whole number, or several: --nodes 1,2,4."
        ) from None
    if min(counts) < 1 or len(set(counts)) != len(counts):
        raise UsageError(f"--nodes '{value}': every count must be at least 1 and stand there once.")
    return counts


def _run(asked: argparse.Namespace) -> int:
    from dlio_bench.harness.run.command import run
    from dlio_bench.harness.run.options import Options

    values = {name: value for name, value in vars(asked).items() if name not in ("command", "version", "reader")}
    return run(Options(readers=asked.reader, **values))


def _list(asked: argparse.Namespace) -> int:
    from dlio_bench.harness.listing import listing, render

    found = listing()
    print(json.dumps(found, indent=1) if asked.json else render(found))
    return 0


def _doctor(asked: argparse.Namespace) -> int:
    from dataclasses import asdict

    from dlio_bench.harness.doctor import examine, render, worst
    from dlio_bench.harness.run.data import cache_folder

    findings = examine(asked.data or cache_folder(None))
    print(json.dumps([asdict(finding) for finding in findings], indent=1) if asked.json else render(findings))
    return worst(findings)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "generate": generation.run_generate,
    "verify": generation.run_verify,
    "index": generation.run_index,
    "plan-data": generation.run_plan_data,
    "simulate": simulator.run_simulate,
    "list": _list,
    "doctor": _doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print what prevents it as one paragraph, and return the documented status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 still gets its numbers
    try:
        return _command(argv)
    except BenchError as error:
        return _complain(str(error), error.status)
    except KeyboardInterrupt:
        message = "Interrupted: the ranks were ended, and nothing unfinished was kept as a result."
        return _complain(message, EnvironmentFailure.status)
    except BrokenPipeError:  # whoever read our output has left: nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EnvironmentFailure.status
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{error.strerror or error}. Make room or give permission there, or choose another folder."
        return _complain(message, EnvironmentFailure.status)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is ours, and no user's
        with tempfile.NamedTemporaryFile("w", prefix="dlio-bench-defect-", suffix=".txt", delete=False) as file:
            traceback.print_exc(file=file)
        message = f"{type(error).__name__}: {error}. That is a defect of dlio-bench; its trace is in {file.name}."
        return _complain(message, EnvironmentFailure.status)


def _command(argv: Sequence[str] | None) -> int:
    asked = parser().parse_args(argv)
    if asked.version:
        from dlio_bench import __version__

        print(f"dlio-bench {__version__}")
        return 0
    if asked.command is None:
        parser().print_help(sys.stderr)
        return UsageError.status
    return COMMANDS[asked.command](asked)


def _complain(message: str, status: int) -> int:
    line = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{line}dlio-bench: {message}", file=sys.stderr)
    return status


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    raise KeyboardInterrupt
