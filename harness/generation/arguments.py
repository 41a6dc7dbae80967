"""The options of the commands on datasets, and the calls they lead to. Heavy imports wait until a command runs."""

import argparse
from pathlib import Path

from dlio_bench.harness.ground.arguments import Commands, add_launcher, add_variant, values_of
from dlio_bench.units import parse_bytes, parse_rate

GENERATE_EXAMPLES = """\
examples:
  dlio-bench generate cdb --out /scratch/cdb --files 128
  dlio-bench generate hepcnnb --out /scratch/hep --bytes 2TB --nodes 16 --ranks-per-node 4
  dlio-bench generate cdb --out s3://bucket/cdb --files 128
  dlio-bench generate imagenet --out /scratch/imagenet --fraction 1% --fill random
"""


def add_generate(commands: Commands) -> None:
    """`generate`."""
    parser = commands.add_parser(
        "generate",
        help="make a dataset of the published layout, at any scale",
        description="Write a dataset with local processes or with ranks. The same command goes on where a stopped one "
        "ended.",
        epilog=GENERATE_EXAMPLES,
    )
    _add_workload(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        required=True,
        help="folder of the dataset, made if absent; or s3://bucket/prefix",
    )
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--files", type=int, metavar="N", help="number of files, all splits together")
    amount.add_argument(
        "--bytes", type=parse_bytes, metavar="SIZE", help="store at most this many bytes in all, for example 2TB"
    )
    amount.add_argument("--fraction", metavar="SHARE", help="share of the published dataset, for example 1%% or 0.01")
    amount.add_argument("--full", action="store_true", help="make the published size")
    parser.add_argument(
        "--fill",
        default="physical",
        metavar="FILL",
        help="physical: values like the application's (default); random: bytes that neither compress nor repeat",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the bytes (default 1)")
    parser.add_argument("--tiny", action="store_true", help="shrink the samples, for tests: never a measurement")
    writers = parser.add_argument_group("who writes")
    writers.add_argument(
        "--workers", type=int, metavar="N", help="write with N processes on this machine (default: as its cores allow)"
    )
    writers.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="write with ranks, on N nodes (default: all of the scheduler's allocation, if it has several)",
    )
    writers.add_argument(
        "--ranks-per-node",
        type=int,
        metavar="R",
        help="ranks on each node (default: the allocation's tasks per node, else as the cores allow; outside of an "
        "allocation 1)",
    )
    add_launcher(writers)
    parser.add_argument("--json", action="store_true", help="print JSON, with the folder's raw write rate beside ours")
    parser.add_argument("--no-raw", dest="raw", action="store_false", help="leave the raw write rate out of the JSON")


def run_generate(options: argparse.Namespace) -> int:
    """`generate`."""
    from dlio_bench.harness.generation.amount import Amount, fraction
    from dlio_bench.harness.generation.command import Options, generate

    share = None if options.fraction is None else fraction(options.fraction)
    amount = Amount(options.files, options.bytes, share)
    return generate(Options(amount=amount, **values_of(options, "files", "bytes", "fraction", "full")))


def add_verify(commands: Commands) -> None:
    """`verify`."""
    parser = commands.add_parser(
        "verify",
        help="check every byte of a dataset; name each bad file",
        description="Compare every stored field with its CRC32C. The exit status is 5 if a file is missing or damaged.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the dataset, or s3://bucket/prefix")
    parser.add_argument(
        "--sample-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="also make this share of the files anew and compare (default 0)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: as the cores allow)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_verify(options: argparse.Namespace) -> int:
    """`verify`."""
    from dlio_bench.harness.generation.verification import Options, verify

    return verify(Options(**values_of(options)))


def add_index(commands: Commands) -> None:
    """`index`."""
    parser = commands.add_parser(
        "index",
        help="make a dataset of files that others wrote, so that `run` can read them",
        description="Find every sample in the files of a folder, so that `run --data` can read them.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that holds the files, or s3://bucket/prefix")
    parser.add_argument(
        "--workload", metavar="WORKLOAD", required=True, help="workload whose files they are (see `dlio-bench list`)"
    )
    add_variant(parser)
    parser.add_argument("--tiny", action="store_true", help="the samples are shrunken ones, for tests")
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="split of the files whose folders and names do not tell it: train, validation or test",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out files that cannot be read as samples, and name them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_index(options: argparse.Namespace) -> int:
    """`index`."""
    from dlio_bench.harness.generation.indexing import Options, index_data

    return index_data(Options(**values_of(options)))


def add_plan_data(commands: Commands) -> None:
    """`plan-data`."""
    parser = commands.add_parser(
        "plan-data",
        help="how much data a valid cold run needs, and how long it takes to make",
        description="Compute how much data the caches of the nodes cannot hold. Makes nothing.",
    )
    _add_workload(parser)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes that will read (default 1)")
    parser.add_argument(
        "--memory-per-node", type=parse_bytes, metavar="SIZE", help="memory of a node, for example 192GiB"
    )
    parser.add_argument(
        "--rate",
        type=parse_rate,
        metavar="RATE",
        help="write rate of the file system, for example 2GB/s, to say how long writing takes",
    )
    parser.add_argument("--full", action="store_true", help="plan for the published size")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_plan_data(options: argparse.Namespace) -> int:
    """`plan-data`."""
    from dlio_bench.harness.generation.plan import Options, plan_data

    return plan_data(Options(**values_of(options)))


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="hepcnnb, cdb, cosmoflow, imagenet or wsi (see `dlio-bench list`)"
    )
    add_variant(parser)
