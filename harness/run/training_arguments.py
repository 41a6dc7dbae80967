"""The options of `dlio-bench run` for trainers: streams that feed them, and the training of networks."""

import argparse
import os
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.training.exchange.options import DEFAULT_TIMEOUT
from dlio_bench.refusals import require_at_least
from dlio_bench.units import format_seconds, parse_seconds, parse_share


def add_streams(run: argparse.ArgumentParser) -> None:
    """Those of the reader `stream`."""
    streams = run.add_argument_group("streams (--reader stream)")
    streams.add_argument(
        "--stream",
        metavar="HOW",
        help="which trainer gets which batch. planned: the plan's global shuffle, from all producers in turn "
        "(default). round-robin: ADIOS2 deals each step to the trainers in turn. all: every trainer gets every batch. "
        "on-demand: a trainer that asks gets the next one",
    )
    streams.add_argument(
        "--producers",
        type=int,
        metavar="N",
        help="ranks that read the dataset and publish it, beyond those that train (default 1)",
    )
    streams.add_argument(
        "--inline",
        action="store_true",
        help="no ranks of their own: a thread of each trainer's process is its producer",
    )
    streams.add_argument(
        "--stream-engine", metavar="NAME", help="of ADIOS2. sst: over the network (default). bp: through files in --out"
    )
    streams.add_argument(
        "--stream-queue", type=int, metavar="N", help="most batches that a stream holds for its trainers (default 4)"
    )
    streams.add_argument(
        "--stream-full",
        metavar="HOW",
        help="what a producer does when the queue is full. block: wait (default). discard: ADIOS2 drops a batch, and "
        "the run ends with an error, as samples are missing",
    )


def _count(text: str) -> int:
    """Steps between two checkpoints. UsageError below 1: of options, 0 means that nobody gave it."""
    try:
        count = int(text)
    except ValueError:
        raise UsageError(f"--checkpoint-load-every '{text}' is not a number of steps. Write one, such as 20.") from None
    require_at_least(1, checkpoint_load_every=count)
    return count


def _add_checkpoint_load(run: argparse.ArgumentParser) -> None:
    """Checkpoints beside the input."""
    load = run.add_argument_group("checkpoints beside the input (with any --compute)")
    load.add_argument(
        "--checkpoint-load",
        metavar="MODEL",
        help="write checkpoints of a model's size beside the input, each rank its share: llama3-8b or another of "
        "`dlio-bench checkpoint --help`",
    )
    load.add_argument("--checkpoint-load-every", type=_count, metavar="K", help="write one after every K steps")
    load.add_argument(
        "--checkpoint-load-fraction",
        type=parse_share,
        metavar="SHARE",
        help="cut the bytes of its files to this share, such as 1%% (default 100%%)",
    )
    load.add_argument(
        "--checkpoint-load-dir",
        type=os.path.abspath,
        metavar="DIR",
        help="write them in a folder of this one (default: the folder of the results); the two newest stay until the "
        "trial ends",
    )


def add_training(run: argparse.ArgumentParser) -> None:
    """Those of --compute train, and of checkpoints beside any compute."""
    _add_checkpoint_load(run)
    training = run.add_argument_group("training (--compute train)")
    training.add_argument(
        "--exchange",
        metavar="KIND",
        help="who averages the gradients: horovod, mpi or none (default: horovod if it works with this "
        "TensorFlow, else mpi)",
    )
    training.add_argument(
        "--fp16-gradients", action="store_true", help="send gradients as float16, which halves their bytes"
    )
    training.add_argument(
        "--gradient-lag",
        type=int,
        metavar="N",
        help="1: each step applies the gradients of the step before, while its own are on their way (default 0)",
    )
    training.add_argument(
        "--hierarchical", action="store_true", help="add up gradients within each node, then between the nodes"
    )
    training.add_argument(
        "--leaders",
        type=int,
        metavar="N",
        help="with --hierarchical: N ranks of each node talk to other nodes, each for a part of the gradients, as one "
        "for each network interface (default 1)",
    )
    training.add_argument(
        "--exchange-timeout",
        type=parse_seconds,
        metavar="TIME",
        help=f"end the run if a rank waits this long for the others (default {format_seconds(DEFAULT_TIMEOUT)})",
    )
    training.add_argument(
        "--checkpoint",
        type=int,
        metavar="K",
        help="save weights and optimiser after every K steps, beside the result; rank 0 writes, and the two "
        "newest stay",
    )
    training.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="start from the newest whole checkpoint in DIR, which must be of the end of an epoch, and run one "
        "trial of --epochs further epochs, on the same dataset. With --compute infer: predict with its weights",
    )
