"""The options of `bench-readers`. Heavy imports wait until the command runs."""

import argparse

from dlio_bench.harness.ground.arguments import Commands, add_cache_dir, values_of
from dlio_bench.units import parse_bytes


def add_bench_readers(commands: Commands) -> None:
    """`bench-readers`."""
    parser = commands.add_parser(
        "bench-readers",
        help="our readers beside plain loops, HDF5 and tf.data on warm data",
        description="Make small datasets, read them warm with every reader in turn, and print the ratios.",
    )
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="hepcnnb, cdb, cosmoflow, imagenet (default all)"
    )
    parser.add_argument("--ranks", type=int, default=2, metavar="R", help="ranks (default 2)")
    parser.add_argument(
        "--trials", type=int, default=5, metavar="T", help="trials, of which the median counts (default 5)"
    )
    parser.add_argument(
        "--size", type=parse_bytes, default=10**9, metavar="SIZE", help="bytes of each dataset (default 1GB)"
    )
    add_cache_dir(parser)
    parser.add_argument(
        "--threads", type=int, metavar="T", help="reading threads a rank of `prefetch` at most (default: as `run`)"
    )
    parser.add_argument("--tiny", action="store_true", help="shrunken samples: what small warm data cost")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_bench_readers(asked: argparse.Namespace) -> int:
    """`bench-readers`."""
    from dlio_bench.harness.bench_readers.command import Options, bench_readers

    return bench_readers(Options(workloads=tuple(asked.workloads), **values_of(asked, "workloads")))
