"""The options of `dlio-bench checkpoint`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import defaults
from dlio_bench.harness.ground.arguments import Commands, add_launcher, allocated_scale, values_of
from dlio_bench.units import parse_share

EXAMPLES = """\
examples:
  dlio-bench checkpoint llama3-8b --fraction 1% --ranks-per-node 4 --folder /scratch
  dlio-bench checkpoint llama3-8b --nodes 2 --ranks-per-node 4 --folder /scratch --dry-run
  dlio-bench checkpoint llama3-405b --fraction 0.01% --ranks-per-node 2 --folder /scratch
  dlio-bench checkpoint llama3-8b-subset --folder /scratch
  dlio-bench checkpoint resnet50 --layout single-file --trials 10
"""


def add_checkpoint(commands: Commands) -> None:
    """`checkpoint`."""
    parser = commands.add_parser(
        "checkpoint",
        help="write checkpoints of a large model's size, read them back on other ranks, compare every byte",
        description="Write the checkpoints of a published model, or of a network of this suite, with as many ranks and "
        "files as its training has; drop them from the page cache, read them by other ranks, and compare every byte. "
        "Rates are those of the slowest rank behind a barrier. The checkpoints are removed at the end.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="llama3-8b, llama3-70b, llama3-405b, a network such as resnet50 (see `dlio-bench list`), or "
        "llama3-8b-subset: the published workload of 8 ranks, with 10 whole checkpoints",
    )
    what = parser.add_argument_group("what is written")
    what.add_argument(
        "--fraction",
        type=_fraction,
        default=1.0,
        metavar="SHARE",
        help="cut the bytes of each file to this share, such as 1%%, and keep files and writers (default 100%%)",
    )
    what.add_argument(
        "--layout",
        default="sharded",
        metavar="NAME",
        help="sharded: the model's own files (default). file-per-rank: one for each rank. single-file: one for all",
    )
    what.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="write what a training of N ranks writes (default: of as many as here; llama3-405b: 512, as published)",
    )
    what.add_argument(
        "--checkpoints",
        type=int,
        metavar="K",
        help="write so many in a trial, then read them from the oldest on (default 2; llama3-8b-subset: 10, as "
        "published)",
    )
    what.add_argument(
        "--fsync",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="make every file durable before a checkpoint counts as written (default: yes)",
    )
    who = parser.add_argument_group("who writes and reads, and where")
    who.add_argument("--nodes", type=int, metavar="N", help="nodes, virtual on one machine (default 1)")
    who.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks on each node (default 1)")
    who.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="make the checkpoints in a folder of this one (default: the current folder)",
    )
    add_launcher(who, joins=False)
    trust = parser.add_argument_group("trials")
    trust.add_argument(
        "--trials", type=int, default=defaults.TRIALS, metavar="T", help=f"timed trials (default {defaults.TRIALS})"
    )
    trust.add_argument("--seed", type=int, metavar="N", help="seed of the bytes (default: another one each time)")
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="DIR", help="folder of the result (default dlio-results/TIME-NAME)")
    output.add_argument("--dry-run", action="store_true", help="print what would be written, and end")
    output.add_argument("--json", action="store_true", help="print JSON")


def _fraction(text: str) -> float:
    """A share above 0 % and up to 100 %. UsageError."""
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number)
    except ValueError:
        return parse_share(text)  # which says how one is written
    if value <= 0:
        raise UsageError(f"--fraction {text}: write a share above 0 % and up to 100 %, such as 1%.")
    if number == text.strip() and value <= 100:
        raise UsageError(f"--fraction {text} is not a percentage: did you mean {number}%?")
    return parse_share(text)


def run_checkpoint(options: argparse.Namespace) -> int:
    """`checkpoint`."""
    from dlio_bench.harness.checkpoints.command import Options, checkpoint

    named = {"nodes": options.nodes, "ranks_per_node": options.ranks_per_node}
    scale = allocated_scale(**{name: value is not None for name, value in named.items()})
    nodes = scale.nodes if options.nodes is None else options.nodes
    given = scale.ranks_per_node if scale.origin else None  # None: of the model
    return checkpoint(Options(**values_of(options) | {
        "nodes": nodes, "ranks_per_node": given if options.ranks_per_node is None else options.ranks_per_node
    }))  # fmt: skip
