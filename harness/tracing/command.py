"""`dlio-bench trace`: what its paths are, and who tells of them."""

import argparse
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.tracing import counted, darshan, kinds, of_logs, of_results, of_spans
from dlio_bench.harness.tracing.kinds import OF_LOGS, OF_RESULTS, OF_SPANS

# Of which kind of path each option is.
MEANT_FOR = {
    "nodes": (OF_LOGS,),
    "csv": (OF_LOGS,),
    "trial": (OF_RESULTS, OF_SPANS),
    "ranks": (OF_RESULTS, OF_SPANS),
    "chrome": (OF_RESULTS, OF_SPANS),
    "steps": (OF_RESULTS,),
    "timelogger": (OF_RESULTS,),
    "html": (OF_RESULTS,),
}
OF_CHROME = ("ranks", "steps")  # which part of a result its trace has


def run_trace(options: argparse.Namespace) -> int:
    """Print the tables, and write what is asked for."""
    if options.counted:
        _refuse_others(options, "counted", "dry_run")
        return counted.run(options)
    if not options.paths:
        raise UsageError("Name results, or logs of TimeLogger. `dlio-bench trace --help` shows what there is.")
    options.paths = [Path(path) for path in options.paths]
    if options.darshan:
        _refuse_others(options, "darshan")
        return darshan.run(options.paths, as_json=options.json)
    if options.dry_run:
        raise UsageError("--dry-run is for --command, as nothing else here starts anything. Leave it out.")
    from dlio_bench.harness.tracing import written

    written.require(options)
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"--nodes {options.nodes} is too small: it must be at least 1.")
    kind = kinds.kind(options.paths)
    for flag, meant in MEANT_FOR.items():
        if getattr(options, flag) is not None and kind not in meant:
            raise UsageError(f"--{flag} is for {' and '.join(meant)}, not for {kind}. Leave it out.")
    for flag in OF_CHROME:
        if getattr(options, flag) is not None and options.chrome is None:
            raise UsageError(f"--{flag} chooses what --chrome writes. Add --chrome FILE, or leave --{flag} out.")
    return {OF_RESULTS: of_results.run, OF_SPANS: of_spans.run, OF_LOGS: of_logs.run}[kind](options)


def _refuse_others(options: argparse.Namespace, mode: str, *with_it: str) -> None:
    """UsageError for options that do not go with --darshan or --command."""
    shown = {"counted": "command"}
    for name, value in vars(options).items():
        if value not in (None, False) and name not in ("command", "paths", "json", mode, *with_it):
            flags = (shown.get(each, each).replace("_", "-") for each in (name, mode))
            raise UsageError("--{} does not go with --{}. Leave one of them out.".format(*flags))
