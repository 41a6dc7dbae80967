"""The options of `dlio-bench trace`."""

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import options as opt

MOST_RANKS = 64  # in a trace, unless --ranks names them

EXAMPLES = """\
examples:
  dlio-bench trace dlio-results/20260102-030405-cdb
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1 --chrome trace.json
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1 --chrome trace.json.gz --ranks 0,1 --steps 0-99
  dlio-bench trace nodes-1 nodes-4 --html trace.html
  dlio-bench trace time_logger_output/ --nodes 64 --csv records.csv
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1/spans-unfinished.npz
  dlio-bench trace --darshan job_1234.darshan
  dlio-bench trace --command -- python train.py --epochs 1

exit status:
  0  printed   2  usage, or nothing to read there
  4  a file not readable, a package missing; the traced command failed
  5  damaged: a result; or its spans (or those of another run), or a log: the rest is printed
"""


def _ranks(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--ranks '{text}' is no list of ranks. Write numbers from 0: --ranks 0,1,5.")
    return tuple(map(int, numbers))


def _steps(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise UsageError(f"--steps '{text}' is no range of steps. Write the first and the last: --steps 0-99.")
    return range(int(first), int(last) + 1)


class Options(Struct, frozen=True, kw_only=True):
    """None: not given. words: of a command, else paths."""

    words: Annotated[
        tuple[str, ...],
        opt.argument(
            "RESULT|LOG", "results or logs, or folders of them; or spans of a run that was stopped", nargs="*"
        ),
    ] = ()
    json: opt.Json = False
    darshan: Annotated[bool, opt.flag("the paths are logs of Darshan"), opt.Group("how files were accessed")] = False
    counted: Annotated[
        bool,
        opt.flag(
            "the words behind -- are a command: run it, and count what it and its descendants read and write",
            "--command",
        ),
    ] = False
    dry_run: Annotated[bool, opt.flag("with --command: print the command, do not run it")] = False
    trial: Annotated[
        int | None, opt.count("N", "this trial, from 1 (default: the median one)"), opt.Group("of results")
    ] = None
    verbose: Annotated[bool, opt.flag("print the tables of each result too, where several are named")] = False
    ranks: Annotated[
        tuple[int, ...] | None,
        opt.option(f"ranks of the trace (default: the first {MOST_RANKS})", metavar="R[,R...]", type=_ranks),
    ] = None
    steps: Annotated[
        range | None,
        opt.option(
            "what was under way in these steps of the trace's ranks, from 0 on over all epochs (default: all)",
            metavar="A-B",
            type=_steps,
        ),
    ] = None
    chrome: Annotated[
        Path | None,
        opt.file("write a trace of one result, for ui.perfetto.dev or Chrome; compressed if FILE ends in .gz"),
    ] = None
    timelogger: Annotated[
        Path | None, opt.file("write the spans of one result as TimeLogger would have: steps, waits, reads")
    ] = None
    html: Annotated[Path | None, opt.file("write the tables as a page with figures, over all results named")] = None
    nodes: Annotated[
        int | None, opt.count("N", "nodes of the run (default: as many as ranks)"), opt.Group("of logs")
    ] = None
    csv: Annotated[Path | None, opt.file("write all records as the study's CSV table")] = None

    @property
    def paths(self) -> list[Path]:
        """The words as paths."""
        return [Path(word) for word in self.words]


def _run(given: opt.Given) -> int:
    options = Options(**given)
    if options.counted:  # has no other threads, as NumPy starts them
        from dlio_bench.harness.commands.tracing import command_io

        _refuse_others(given, "counted", "dry_run")
        return command_io.run(options)
    from dlio_bench.harness.commands.tracing import command

    if options.darshan:
        _refuse_others(given, "darshan")
    return command.run(options)


def _refuse_others(given: opt.Given, mode: str, *with_it: str) -> None:
    """UsageError for options that do not go with --darshan or --command."""
    for name in given:
        if name not in ("words", "json", mode, *with_it):
            flags = ({"counted": "command"}.get(each, each).replace("_", "-") for each in (name, mode))
            raise UsageError("--{} does not go with --{}. Leave one of them out.".format(*flags))


TRACE = opt.Command(
    "trace",
    "tell where the time of a run went, or of the NERSC study's logs",
    "Results: what a rank's trainer did, phase by phase; with `run --trace spans` what all its threads did, component "
    "by component; and a trace of it to look at. Over several node counts the share of I/O and the read bandwidth, "
    "with the NERSC study's published values beside them, and the critical path. Logs of the NERSC study's TimeLogger "
    "(what its programs printed, or its files of each rank): the study's accountings, HEPCNNB's seconds a node and "
    "CDB's merged intervals; beside them how long reading and training overlapped, and what each component took "
    "itself. Broken records are named, not dropped. Logs of Darshan, and any command: how they access files.",
    Options,
    _run,
    EXAMPLES,
)
