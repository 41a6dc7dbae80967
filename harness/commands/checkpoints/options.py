"""The options of `dlio-bench checkpoint`. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from dlio_bench.harness.ground import defaults, starting
from dlio_bench.harness.ground import options as opt

SHARDED, FILE_PER_RANK, SINGLE_FILE = LAYOUTS = ("sharded", "file-per-rank", "single-file")
# twice the ranks of the largest machines, and far beyond any use: what is above is a slip of the fingers
MOST_NODES, MOST_RANKS_PER_NODE, MOST_SHARDS, MOST_TRIALS = 1 << 14, 1 << 10, 1 << 16, 1000
EXAMPLES = """\
examples:
  dlio-bench checkpoint llama3-8b --fraction 1% --ranks-per-node 4 --folder /scratch
  dlio-bench checkpoint llama3-8b --nodes 2 --ranks-per-node 4 --folder /scratch --dry-run
  dlio-bench checkpoint llama3-405b --fraction 0.01% --ranks-per-node 2 --folder /scratch
  dlio-bench checkpoint llama3-8b-subset --folder /scratch
  dlio-bench checkpoint resnet50 --layout single-file --trials 10
"""


class Options(Struct, frozen=True, kw_only=True):
    """None: chosen by the command."""

    model: Annotated[
        str,
        opt.argument(
            "MODEL",
            "llama3-8b, llama3-70b, llama3-405b, a network such as resnet50 (see `dlio-bench list`), or "
            "llama3-8b-subset: the published workload of 8 ranks, with 10 whole checkpoints",
        ),
    ]
    fraction: Annotated[
        float,
        opt.share("cut the bytes of each file to this share, such as 1%%, and keep files and writers (default 100%%)"),
        opt.Group("what is written"),
    ] = 1.0
    layout: Annotated[
        str,
        opt.choice(
            "NAME",
            "sharded: the model's own files (default). file-per-rank: one for each rank. single-file: one for all",
            LAYOUTS,
        ),
    ] = SHARDED
    shards: Annotated[
        int | None,
        opt.count(
            "N",
            "write what a training of N ranks writes (default: of as many as here; llama3-405b: 512, as published)",
            most=MOST_SHARDS,
        ),
    ] = None
    checkpoints: Annotated[
        int | None,
        opt.count(
            "K",
            "write so many in a trial, then read them from the oldest on (default 2; llama3-8b-subset: 10, as "
            "published)",
            most=MOST_TRIALS,
        ),
    ] = None
    fsync: Annotated[
        bool,
        opt.option(
            "make every file durable before a checkpoint counts as written (default: yes)",
            action=argparse.BooleanOptionalAction,
        ),
    ] = True
    nodes: Annotated[
        int,
        opt.count("N", "nodes, virtual on one machine (default 1)", most=MOST_NODES),
        opt.Group("who writes and reads, and where"),
    ] = 1
    ranks_per_node: Annotated[
        int | None, opt.count("N", "ranks on each node (default 1)", most=MOST_RANKS_PER_NODE)
    ] = None
    folder: Annotated[
        Path, opt.folder("make the checkpoints in a folder of this one (default: the current folder)")
    ] = Path()
    launcher: opt.Launcher = None
    trials: Annotated[
        int, opt.count("T", f"timed trials (default {defaults.TRIALS})", most=MOST_TRIALS), opt.Group("trials")
    ] = defaults.TRIALS
    seed: Annotated[
        int | None, opt.count("N", "seed of the bytes (default: another one each time)", least=0, most=2**32 - 1)
    ] = None
    out: Annotated[
        Path | None, opt.folder("folder of the result (default dlio-results/TIME-NAME)"), opt.Group("output")
    ] = None
    dry_run: Annotated[bool, opt.flag("print what would be written, and end")] = False
    json: opt.Json = False


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.checkpoints.command import checkpoint

    scale = starting.allocated_scale(nodes="nodes" in given, ranks_per_node="ranks_per_node" in given)
    there: dict[str, Any] = {"nodes": scale.nodes}
    if scale.origin:  # else the model says how many
        there["ranks_per_node"] = scale.ranks_per_node
    return checkpoint(Options(**{**there, **given}))


CHECKPOINT = opt.Command(
    "checkpoint",
    "write checkpoints of a large model's size, read them back on other ranks, compare every byte",
    "Write the checkpoints of a published model, or of a network of this suite, with as many ranks and files as its "
    "training has; drop them from the page cache, read them by other ranks, and compare every byte. Rates are those of "
    "the slowest rank behind a barrier. The checkpoints are removed at the end.",
    Options,
    _run,
    EXAMPLES,
    process=starting.RANKS_OF_TRIALS,
)
