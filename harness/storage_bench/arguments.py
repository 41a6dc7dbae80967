"""The options of `dlio-bench storage`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path
from typing import TypeAlias

from dlio_bench.errors import UsageError
from dlio_bench.units import parse_bytes

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EXAMPLES = """\
examples:
  dlio-bench storage /scratch --workload cdb
  dlio-bench storage /scratch --sample-size 16MB --size 20GB --threads 1,4,16 --ranks 4
  dlio-bench storage --data /scratch/cdb --out ceiling.json
"""


def add_storage(commands: Commands) -> None:
    """`storage`."""
    own = commands.add_parser(
        "storage",
        help="measure what any reader could get from a folder: read and metadata rates, the yardstick of a run",
        description="Read files with plain preadv and nothing else, front to back and sample by sample, and print the "
        "highest sustained rate. The test files are removed at the end.",
        epilog=EXAMPLES,
    )
    own.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        nargs="?",
        help="folder on the storage; test files are made and removed in it",
    )
    what = own.add_argument_group("what is read")
    what.add_argument("--workload", metavar="WORKLOAD", help="make files like those of this workload (default cdb)")
    what.add_argument(
        "--sample-size", type=parse_bytes, metavar="SIZE", help="read samples of this size instead, for example 16MB"
    )
    what.add_argument(
        "--data", type=Path, metavar="DATASET_DIR", help="read the files of this dataset instead of making any"
    )
    what.add_argument(
        "--size",
        type=parse_bytes,
        metavar="SIZE",
        help="bytes in all files together (default: 1 to 2 GB, at most 10%% of the free space)",
    )
    who = own.add_argument_group("who reads")
    who.add_argument(
        "--threads", type=_threads, default=(1, 2, 4), metavar="N[,N...]", help="threads of each rank (default 1,2,4)"
    )
    who.add_argument("--ranks", type=_ranks, default=(1, 2), metavar="N[,N...]", help="numbers of ranks (default 1,2)")
    who.add_argument(
        "--launcher", metavar="NAME", help="local, mpirun, srun, jsrun, flux or pals (default: from the environment)"
    )
    how = own.add_argument_group("trials")
    how.add_argument("--trials", type=int, default=5, metavar="T", help="timed trials of each kind of read (default 5)")
    how.add_argument(
        "--cache", default="cold", metavar="MODE", help="page cache before a trial: cold or warm (default cold)"
    )
    own.add_argument("--json", action="store_true", help="print JSON")
    own.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to a file")


def run_storage(asked: argparse.Namespace) -> int:
    """`storage`."""
    from dlio_bench.harness.storage_bench.command import Options, storage

    values = {name: value for name, value in vars(asked).items() if name not in ("command", "version")}
    return storage(Options(**values))


def _threads(text: str) -> tuple[int, ...]:
    return _counts("--threads", text)


def _ranks(text: str) -> tuple[int, ...]:
    return _counts("--ranks", text)


def _counts(flag: str, text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} '{text}' is not a count. Write a whole number, or several: {flag} 1,2,4.") from None
    if min(counts) < 1 or len(set(counts)) != len(counts):
        raise UsageError(f"{flag} '{text}': every number must be at least 1, and none may come twice.")
    return tuple(sorted(counts))
