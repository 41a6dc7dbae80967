"""The options of `bench-readers`. Heavy imports wait until the command runs."""

import argparse

from dlio_bench.harness.ground.arguments import Commands, add_cache_dir, values_of
from dlio_bench.units import parse_bytes


def add_bench_readers(commands: Commands) -> None:
    """`bench-readers`."""
    parser = commands.add_parser(
        "bench-readers",
        help="compare our readers with plain loops and libraries (HDF5, tf.data, DALI ...), on files in the page cache",
        description="Make small datasets, read them from the page cache with every reader in turn, and print the "
        "ratios, and what was compared of the samples. tf.data, DataLoader, WebDataset and DALI need their packages.",
    )
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="as `dlio-bench list` names them (default all)"
    )
    parser.add_argument(
        "--variant",
        metavar="NAME",
        help="layout of the files, such as raw of imagenet (default: one for each workload)",
    )
    parser.add_argument("--ranks", type=int, default=2, metavar="R", help="number of ranks (default 2)")
    parser.add_argument(
        "--trials", type=int, default=5, metavar="T", help="trials of each reader; the median counts (default 5)"
    )
    parser.add_argument(
        "--size", type=parse_bytes, default=10**9, metavar="SIZE", help="size of each dataset (default 1GB)"
    )
    parser.add_argument(
        "--io",
        default="buffered",
        metavar="MODE",
        help="buffered: from the page cache (default). direct: from the device, past the page cache, with O_DIRECT; "
        "our readers and raw preadv alone, as libraries know only the page cache",
    )
    add_cache_dir(parser)
    parser.add_argument(
        "--threads", type=int, metavar="T", help="most reading threads of a rank of `prefetch` (default: as `run`)"
    )
    parser.add_argument("--tiny", action="store_true", help="shrink the samples, to see what small samples cost")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_bench_readers(options: argparse.Namespace) -> int:
    """`bench-readers`."""
    from dlio_bench.harness.bench_readers.command import Options, bench_readers

    return bench_readers(Options(workloads=tuple(options.workloads), **values_of(options, "workloads")))
