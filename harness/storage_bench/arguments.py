"""The options of `dlio-bench storage`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from functools import partial
from pathlib import Path

from dlio_bench.harness.ground.arguments import Commands, add_launcher, counts, values_of
from dlio_bench.units import parse_bytes

EXAMPLES = """\
examples:
  dlio-bench storage /scratch --workload cdb
  dlio-bench storage /scratch --sample-size 16MB --size 20GB --threads 1,4,16 --ranks 4
  dlio-bench storage --data /scratch/cdb --out ceiling.json
  dlio-bench storage /scratch --io direct
  dlio-bench storage --data s3://bucket/cdb --threads 1,8,32
  dlio-bench storage /scratch --nodes 4 --ranks 4,16
"""


def add_storage(commands: Commands) -> None:
    """`storage`."""
    parser = commands.add_parser(
        "storage",
        help="measure what any reader could get from a folder: read and metadata rates, the yardstick of a run",
        description="Read files with plain preadv and nothing else, front to back and sample by sample, and print the "
        "highest sustained rate. The test files are removed at the end.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        nargs="?",
        help="folder on the storage, or s3://bucket/prefix; test files are made and removed in it",
    )
    what = parser.add_argument_group("what is read")
    what.add_argument("--workload", metavar="WORKLOAD", help="make files like those of this workload (default cdb)")
    what.add_argument(
        "--sample-size", type=parse_bytes, metavar="SIZE", help="read samples of this size instead, for example 16MB"
    )
    what.add_argument(
        "--data",
        type=Path,
        metavar="DATASET_DIR",
        help="read the files of this dataset, a folder or s3://bucket/prefix, instead of making any",
    )
    what.add_argument(
        "--size",
        type=parse_bytes,
        metavar="SIZE",
        help="bytes in all files together (default: 1 to 2 GB, at most 10%% of the free space)",
    )
    readers = parser.add_argument_group("who reads")
    readers.add_argument(
        "--threads",
        type=partial(_ascending, "--threads"),
        default=(1, 2, 4),
        metavar="N[,N...]",
        help="threads of each rank (default 1,2,4)",
    )
    readers.add_argument(
        "--ranks",
        type=partial(_ascending, "--ranks"),
        metavar="N[,N...]",
        help="numbers of ranks (default 1,2; with --launcher none those that are there)",
    )
    readers.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="nodes that share the ranks evenly (default: as many of the allocation as divide each number of ranks, "
        "outside of one 1)",
    )
    add_launcher(readers)
    how = parser.add_argument_group("trials")
    how.add_argument("--trials", type=int, default=5, metavar="T", help="timed trials of each kind of read (default 5)")
    how.add_argument(
        "--cache", default="cold", metavar="MODE", help="page cache before a trial: cold or warm (default cold)"
    )
    how.add_argument(
        "--io",
        default="buffered",
        metavar="MODE",
        help="buffered: reads go through the page cache (default). direct: past it, with O_DIRECT, so that cold needs "
        "no cache to be dropped",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to a file")


def run_storage(options: argparse.Namespace) -> int:
    """`storage`."""
    from dlio_bench.harness.storage_bench.command import Options, storage

    return storage(Options(**values_of(options)))


def _ascending(flag: str, text: str) -> tuple[int, ...]:
    return tuple(sorted(counts(flag, text)))
