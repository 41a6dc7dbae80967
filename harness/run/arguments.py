"""The options of `dlio-bench run`."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.arguments import add_cache_dir, add_launcher, add_variant, counts, tier_sizes, values_of
from dlio_bench.harness.storage.pfs.spec import parse_spec
from dlio_bench.units import parse_bytes, parse_seconds

EXIT_STATUSES = """\
exit status:
  0  pass           2  usage             4  launch or environment failure, interrupted
  1  limit missed   3  INVALID result    5  data verification failed
"""

MAIN_EXAMPLE = """\
examples:
  dlio-bench run cdb --nodes 8 --reader prefetch
  dlio-bench run cosmoflow --nodes 1,2,4 --reader naive,shuffled,prefetch --compute none
  dlio-bench run imagenet --nodes 2 --tiny
"""


def add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`run`."""
    run = commands.add_parser(
        "run",
        help="measure one workload with one or more readers",
        description="Make a small dataset if none is given, launch the ranks, measure, and write result and report.",
        epilog=f"{MAIN_EXAMPLE}\n{EXIT_STATUSES}",
    )
    run.add_argument("workload", metavar="WORKLOAD", help="hepcnnb, cdb, cosmoflow or imagenet (see `dlio-bench list`)")
    scale = run.add_argument_group("scale")
    scale.add_argument(
        "--nodes",
        type=partial(counts, "--nodes"),
        default=(1,),
        metavar="N[,N...]",
        help="nodes; several counts are compared (default 1)",
    )
    scale.add_argument("--ranks-per-node", type=int, default=1, metavar="R", help="ranks (trainers) a node (default 1)")
    add_launcher(scale)
    scale.add_argument(
        "--memory-per-node",
        type=parse_bytes,
        metavar="SIZE",
        help="memory budget of a node (default: the machine's, shared by virtual nodes)",
    )
    data = run.add_argument_group("data")
    data.add_argument("--data", type=Path, metavar="DIR", help="an existing dataset (default: one is made and kept)")
    add_variant(data)
    data.add_argument(
        "--max-data", type=parse_bytes, metavar="SIZE", help="most that is made when no --data is given (default 5GB)"
    )
    add_cache_dir(data)
    data.add_argument(
        "--tiny", action="store_true", help="shrunken samples, for a smoke test in seconds: never a measurement"
    )
    how = run.add_argument_group("readers and steps")
    how.add_argument(
        "--reader",
        type=_names_of("--reader"),
        default=("prefetch",),
        metavar="NAME[,NAME...]",
        help="naive, shuffled, prefetch, staged, cooperative, tfdata, upstream, ... (see `dlio-bench list`; "
        "default prefetch)",
    )
    how.add_argument(
        "--order",
        dest="orders",
        type=_names_of("--order"),
        default=(),
        metavar="NAME[,NAME...]",
        help="another order for each reader, such as file-shuffle or buffered-shuffle(100)",
    )
    how.add_argument(
        "--placement",
        dest="placements",
        type=_names_of("--placement"),
        default=(),
        metavar="NAME[,NAME...]",
        help="another placement for each reader: none, stage-partition, stage-replicate, stage-subset, cooperative, "
        "clairvoyant, ... (see `dlio-bench list`)",
    )
    how.add_argument(
        "--delivery",
        dest="deliveries",
        type=_names_of("--delivery"),
        default=(),
        metavar="NAME[,NAME...]",
        help="another delivery for each reader: 'on demand', ahead, tf.data",
    )
    how.add_argument(
        "--shard",
        default="rank",
        metavar="WHAT",
        help="rank or node: who owns a share in orders of shards (default rank); job: nobody does, and all ranks read "
        "the whole dataset in one order, as ranks do that hold parts of one model",
    )
    how.add_argument(
        "--last",
        metavar="HOW",
        help="samples that do not fill the last step: drop, pad it with the epoch's first, or keep them, in smaller "
        "batches (default drop; keep with --compute infer)",
    )
    how.add_argument(
        "--decode", action="store_true", help="do to the samples what the application does before training"
    )
    how.add_argument(
        "--check-crc",
        action="store_true",
        help="compare every delivered field with its CRC32C, in the reader's threads (not upstream)",
    )
    how.add_argument(
        "--batch",
        type=int,
        metavar="B",
        help="samples a rank and step (default: the published batch, less where data are few)",
    )
    how.add_argument(
        "--epochs",
        type=int,
        metavar="E",
        help="epochs a trial (default: 1, more where a trial would be shorter than --min-seconds or 64 steps)",
    )
    how.add_argument(
        "--min-seconds",
        type=float,
        metavar="S",
        help="seconds of a trial that may be compared (default 5; 0 with --tiny): data and epochs are sized by it, and "
        "shorter trials are marked SHORT; 0: 16 steps are enough",
    )
    how.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="most steps of a trial, in epochs of one length (default: whole epochs); a note says what that leaves out",
    )
    how.add_argument(
        "--steps-per-epoch",
        type=int,
        metavar="S",
        help="an epoch is S steps of a pass over the samples, and the next goes on where it ends; --epochs and "
        "--validation count such epochs (the CDB study: --epochs 3 --steps-per-epoch 3)",
    )
    how.add_argument(
        "--validation",
        metavar="WHEN",
        help="passes over the validation split: none, published (as the application did), or N: behind every N-th "
        "epoch (default: published with --reader upstream or --compute train, else none)",
    )
    how.add_argument(
        "--compute",
        default="emulate",
        metavar="HOW",
        help="none; emulate:DEVICE, a published step time (default emulate:v100); emulate:50ms, a time of your own; "
        "emulate:@FILE, what `dlio-bench calibrate --compute` measured; "
        "train or train:MODEL, the published network, on decoded samples, by TensorFlow; infer or infer:MODEL, forward "
        "through it: every sample of every split of the dataset once, on one of the ranks, in one epoch",
    )
    how.add_argument(
        "--sync",
        metavar="WHEN",
        help="ranks meet at every step, epoch or none (default step; none with --compute infer)",
    )
    how.add_argument(
        "--threads",
        type=int,
        metavar="T",
        help="reading threads a rank at most; readers that read ahead take as many as the latency of their reads asks "
        "for (default: up to 32; for bytes from memory as many as there are cores for)",
    )
    how.add_argument(
        "--staging", type=parse_bytes, metavar="SIZE", help="staging buffer a rank (default 256MB, or two batches)"
    )
    how.add_argument(
        "--local-tier",
        type=Path,
        metavar="DIR",
        help="folder on node-local storage for kept samples and staged copies (of these: default the temporary "
        "folder, on one machine)",
    )
    how.add_argument(
        "--tiers",
        type=tier_sizes,
        metavar="NAME=SIZE[,...]",
        help="what a node keeps of samples in its memory and on its node-local storage, as ram=10GB,disk=40GB "
        "(default: from --system, else two fifths of the memory at most, half of what is free in /dev/shm at most, and "
        "half of what is free in --local-tier if it is given)",
    )
    how.add_argument(
        "--emulate-pfs",
        type=parse_spec,
        metavar="SPEC",
        help="read through an emulated parallel file system, such as 'bandwidth=400MB/s,per-node=250MB/s,open=1ms,"
        "request=0.3ms,cache=2GB,cache-bandwidth=800MB/s'; needs FUSE",
    )
    _add_training(run)
    trust = run.add_argument_group("trials and trust")
    trust.add_argument(
        "--trials",
        type=int,
        metavar="T",
        help="timed trials (default 5; 3 where a reader would take more than a minute; 1 with --tiny)",
    )
    trust.add_argument("--warmup-trials", type=int, metavar="W", help="trials before, kept but not counted (default 1)")
    trust.add_argument(
        "--cache",
        default="cold",
        metavar="MODE",
        help="page cache before a trial: cold, cold-epochs (before each epoch too), warm, as-is (default cold)",
    )
    trust.add_argument(
        "--storage",
        type=Path,
        metavar="FILE",
        help="what `dlio-bench storage --out FILE` found of the same path, as the yardstick in text and report",
    )
    trust.add_argument(
        "--predict",
        action="store_true",
        help="write down beforehand how long each reader's epochs will take, and show it beside what is measured",
    )
    trust.add_argument(
        "--system",
        metavar="FILE",
        help="description of this machine, by `dlio-bench calibrate` (default with --predict: calibrated first, on "
        "test files beside the dataset)",
    )
    trust.add_argument("--seed", type=int, metavar="S", help="seed of the order (default: a new one, recorded)")
    trust.add_argument(
        "--no-verify", dest="verify", action="store_false", help="leave out the untimed pass that checks every byte"
    )
    output = run.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of results and report (default dlio-results/TIME-WORKLOAD)"
    )
    output.add_argument("--dry-run", action="store_true", help="say what would be done, and end")
    output.add_argument("--json", action="store_true", help="print the results as JSON")


def _add_training(run: argparse.ArgumentParser) -> None:
    training = run.add_argument_group("training (--compute train)")
    training.add_argument(
        "--exchange",
        metavar="KIND",
        help="of gradients: horovod, mpi or none (default: horovod where it works with this TensorFlow, else mpi)",
    )
    training.add_argument(
        "--fp16-gradients", action="store_true", help="gradients travel as float16, which halves their bytes"
    )
    training.add_argument(
        "--gradient-lag",
        type=int,
        default=0,
        metavar="N",
        help="1: a step applies the gradients of the step before, while its own travel (default 0)",
    )
    training.add_argument(
        "--hierarchical", action="store_true", help="gradients are added up within a node, then between the nodes"
    )
    training.add_argument(
        "--exchange-timeout",
        type=parse_seconds,
        metavar="TIME",
        help="how long the others wait for a rank before the run ends (default 2min)",
    )
    training.add_argument(
        "--checkpoint",
        type=int,
        metavar="K",
        help="rank 0 saves weights and optimiser after every K steps, beside the result; the two newest are kept",
    )
    training.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on from the newest whole checkpoint in DIR, written at the end of an epoch: one trial; with --compute "
        "infer, predict with its weights",
    )


def _names_of(flag: str) -> Callable[[str], tuple[str, ...]]:
    def names(value: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in value.split(",") if name.strip())
        if not found:
            raise UsageError(f"{flag} needs a name; `dlio-bench list` and `dlio-bench run --help` show them.")
        if len(set(found)) != len(found):
            raise UsageError(f"{flag} '{value}' names one twice. Name each once.")
        return found

    return names


def run(asked: argparse.Namespace) -> int:
    """Run it with the options that were asked for."""
    from dlio_bench.harness.run import command
    from dlio_bench.harness.run.asked.options import Options

    return command.run(Options(readers=asked.reader, **values_of(asked, "reader")))
