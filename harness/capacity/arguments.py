"""The options of `dlio-bench capacity`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
import re
from functools import partial
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import defaults
from dlio_bench.harness.ground.arguments import (
    Commands,
    add_cache_dir,
    add_launcher,
    add_variant,
    allocated_scale,
    values_of,
)
from dlio_bench.harness.storage.pfs.spec import EXAMPLE
from dlio_bench.refusals import require_at_least
from dlio_bench.units import parse_bytes

EXAMPLES = """\
examples:
  dlio-bench capacity cosmoflow --au 70% --max-data 20GB
  dlio-bench capacity imagenet --data /scratch/imagenet --nodes 8 --ranks-per-node 8 --at-least 48
"""


def add_capacity(commands: Commands) -> None:
    """`capacity`."""
    parser = commands.add_parser(
        "capacity",
        help="find how many emulated accelerators a storage feeds at a given AU",
        description="Run the workload with more and more ranks, each an emulated accelerator, until AU falls below the "
        "target. Then repeat the largest scale that holds. Beside each run stands a null run with the data in memory: "
        "if that misses the target too, this client is the limit and not the storage.",
        epilog=EXAMPLES,
    )
    parser.add_argument("workload", metavar="WORKLOAD", help="hepcnnb, cdb, cosmoflow, imagenet or wsi")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument(
        "--au",
        type=share,
        default=0.9,
        metavar="SHARE",
        help="AU that every run must reach (default 90%%)",
    )
    asked.add_argument(
        "--at-least", type=partial(_positive, "--at-least"), metavar="N", help="end with status 1 below N accelerators"
    )
    scale = parser.add_argument_group("scale")
    scale.add_argument(
        "--ranks-per-node",
        type=partial(_positive, "--ranks-per-node"),
        metavar="R",
        help="most ranks on a node (default: 4 for each core of this machine; their compute is emulated by waiting)",
    )
    scale.add_argument(
        "--nodes",
        type=partial(_positive, "--nodes"),
        metavar="N",
        help="most nodes. More nodes are tried only if a node holds with all its ranks (default: all of the "
        "scheduler's allocation, else 1)",
    )
    add_launcher(scale, joins=False)
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, metavar="DIR", help="read this dataset (default: make one and keep it)")
    add_variant(data)
    data.add_argument(
        "--max-data",
        type=parse_bytes,
        metavar="SIZE",
        help="if --data is not given, make at most this much. The largest scale decides how much is made (default "
        f"{defaults.MOST_BYTES // 10**9}GB)",
    )
    add_cache_dir(data)
    data.add_argument("--tiny", action="store_true", help="shrink the samples: a smoke test that measures nothing")
    how = parser.add_argument_group("each run")
    how.add_argument(
        "--reader",
        default="double-buffer",
        metavar="NAME",
        help="the reader (default double-buffer, which reads ahead and keeps nothing, so that every byte comes from "
        "the storage)",
    )
    how.add_argument(
        "--compute",
        default="emulate",
        metavar="HOW",
        help="what waits: emulate:DEVICE, emulate:TIME or emulate:@FILE",
    )
    how.add_argument("--batch", type=partial(_positive, "--batch"), metavar="B", help="samples in a step of one rank")
    how.add_argument(
        "--steps", type=partial(_positive, "--steps"), metavar="N",
        help="steps of a run (default: 320 or what 20 s have, whichever is less; at least "
        f"{defaults.TIMED_STEPS}, and {defaults.TIMED_SECONDS:g} s)",
    )  # fmt: skip
    how.add_argument(
        "--trials",
        type=partial(_positive, "--trials"),
        default=defaults.TRIALS,
        metavar="T",
        help=f"runs that confirm the answer, after one to warm up (default {defaults.TRIALS})",
    )
    how.add_argument("--threads", type=_threads, metavar="T", help="most reading threads of a rank, as for `run`")
    how.add_argument("--staging", type=_staging, metavar="SIZE", help="staging buffer of a rank, as for `run`")
    how.add_argument(
        "--io",
        metavar="MODE",
        help="buffered (default) or direct, past the page cache with O_DIRECT, as for `run`; null runs stay buffered",
    )
    how.add_argument(
        "--emulate-pfs", metavar="SPEC", help=f"read through an emulated parallel file system, such as '{EXAMPLE}'"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of all results (default dlio-results/TIME-WORKLOAD). A search that was stopped goes on there",
    )
    output.add_argument("--dry-run", action="store_true", help="print what would be tried and about how long, and end")
    output.add_argument("--json", action="store_true", help="print the answer as JSON")


def share(text: str) -> float:
    """'90%' or '0.9' -> 0.9. UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < value <= 1:
        raise UsageError(f"'{text}' is not a share. Write a percentage, such as 90%.")
    return value


def _positive(flag: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 10**6:
        raise UsageError(f"{flag} '{text}' is not a whole number from 1 on.")
    return int(text)


def _threads(text: str) -> str:
    """As `run` is to take it. UsageError."""
    return str(_positive("--threads", text))


def _staging(text: str) -> str:
    """As `run` is to take it. UsageError."""
    require_at_least(1, staging=parse_bytes(text))
    return text


def run_capacity(options: argparse.Namespace) -> int:
    """Run it."""
    from dlio_bench.harness.capacity import command

    if options.nodes is None:
        options.nodes = allocated_scale(nodes=False, ranks_per_node=True).nodes
    return command.capacity(command.Options(**values_of(options)))
