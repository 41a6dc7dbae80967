"""The options of `dlio-bench run`."""

import argparse
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import defaults
from dlio_bench.harness.ground.arguments import (
    add_cache_dir,
    add_launcher,
    add_variant,
    allocated_scale,
    counts,
    tier_sizes,
    values_of,
)
from dlio_bench.harness.ground.outcome import add_outcome
from dlio_bench.harness.run import training_arguments
from dlio_bench.harness.run.asked import tracing
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, parse_spec
from dlio_bench.units import parse_bytes

EXIT_STATUSES = """\
exit status:
  0  pass           2  usage             4  launch or environment failure, interrupted
  1  limit missed   3  INVALID result    5  data verification failed
"""

MAIN_EXAMPLE = """\
examples:
  dlio-bench run cdb --nodes 8 --reader naive,prefetch
  dlio-bench run cosmoflow --nodes 1,2,4 --reader naive,shuffled,prefetch --compute none
  dlio-bench run imagenet --nodes 2 --tiny
  dlio-bench run --from dlio-results/20260102-030405-cdb
"""


def add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`run`."""
    run = commands.add_parser(
        "run",
        help="measure one workload with one or more readers",
        description="Make a small dataset if you give none, launch the ranks, measure, and write results and a report.",
        epilog=f"{MAIN_EXAMPLE}\n{EXIT_STATUSES}",
    )
    _add_what(run)
    scale = run.add_argument_group("scale")
    scale.add_argument(
        "--nodes",
        type=partial(counts, "--nodes"),
        metavar="N[,N...]",
        help="number of nodes; give several to compare them (default: all of the scheduler's allocation, else 1)",
    )
    scale.add_argument(
        "--ranks-per-node",
        type=int,
        metavar="R",
        help="ranks on each node, of each model; a rank is one trainer (default: the allocation's tasks per node, else "
        "its GPUs per node, else 1)",
    )
    scale.add_argument(
        "--models",
        metavar="K|NAME[:lr=X][,...]",
        help="train several models side by side, each with nodes x ranks-per-node ranks of its own, so that K times as "
        "many ranks train. All have one plan, and none waits for another. --reader stream reads the dataset once for "
        "all of them; with other readers each model reads for itself, except where ranks of a node keep samples for "
        "each other (prefetch, cooperative, clairvoyant, ...): models share those, and the dataset may be read once "
        "too. The report tells how many times it was read. With --compute train, name the networks: "
        "resnet50,resnet50:lr=0.2 trains one at its published learning rates, one at 0.2 throughout",
    )
    add_launcher(scale)
    scale.add_argument(
        "--memory-per-node",
        type=parse_bytes,
        metavar="SIZE",
        help="memory that a node may use (default: the machine's, which virtual nodes share)",
    )
    data = run.add_argument_group("data")
    data.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="read this dataset: a folder, or s3://bucket/prefix (default: make one and keep it)",
    )
    add_variant(data)
    data.add_argument(
        "--max-data",
        type=parse_bytes,
        metavar="SIZE",
        help=f"if --data is not given, make at most this much (default {defaults.MOST_BYTES // 10**9}GB)",
    )
    add_cache_dir(data)
    data.add_argument(
        "--tiny", action="store_true", help="shrink the samples: a smoke test that takes seconds and measures nothing"
    )
    how = run.add_argument_group("readers and steps")
    how.add_argument(
        "--reader",
        dest="readers",
        type=partial(_names, "--reader"),
        metavar="NAME[,NAME...]",
        help="naive, shuffled, prefetch, staged, cooperative, tfdata, torch, webdataset, stream, upstream, ... (see "
        "`dlio-bench list`; default prefetch)",
    )
    for flag, dest, values in (
        ("--order", "orders", ", for example by file-shuffle or buffered-shuffle(100)"),
        (
            "--placement",
            "placements",
            ": none, stage-partition, stage-replicate, stage-subset, cooperative, clairvoyant, ... "
            "(see `dlio-bench list`)",
        ),
        ("--delivery", "deliveries", ": 'on demand', ahead, tf.data, torch, webdataset or stream"),
    ):
        how.add_argument(
            flag,
            dest=dest,
            type=partial(_names, flag),
            metavar="NAME[,NAME...]",
            help=f"replace the {flag[2:]} of each reader{values}",
        )
    how.add_argument(
        "--shard",
        metavar="WHAT",
        help="who owns a share of the samples: rank (default) or node. With job, all ranks read the "
        "whole dataset in the same order, as ranks that hold parts of one model do; with pipeline, the first rank "
        "reads the samples and the last one their labels, as stages of a pipeline do",
    )
    how.add_argument(
        "--last",
        metavar="HOW",
        help="what happens to samples that do not fill the last step. drop: they are left out (default). pad: "
        "the first samples of the epoch fill the step. keep: the last batches are smaller (default with "
        "--compute infer)",
    )
    how.add_argument("--decode", action="store_true", help="decode the samples as the application does before training")
    how.add_argument(
        "--check-crc",
        action="store_true",
        help="compare the CRC32C of every delivered field, in the threads of the reader (not upstream)",
    )
    how.add_argument(
        "--batch",
        type=int,
        metavar="B",
        help="samples in a step of one rank (default: the published batch, or less if there are few samples)",
    )
    how.add_argument(
        "--epochs",
        type=int,
        metavar="E",
        help=f"epochs in a trial (default 1; more if a trial would be shorter than --min-seconds or "
        f"{defaults.TIMED_STEPS} steps)",
    )
    how.add_argument(
        "--min-seconds",
        type=float,
        metavar="S",
        help=f"shortest trial that may be compared, in seconds (default {defaults.TIMED_SECONDS:g}; 0 with --tiny). "
        "Data and epochs are chosen to reach it; shorter trials are marked SHORT. With 0, "
        f"{defaults.STEPS} steps are enough",
    )
    how.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="run at most N steps in a trial, in epochs of equal length (default: whole epochs); a note in the result "
        "names what that leaves out",
    )
    how.add_argument(
        "--steps-per-epoch",
        type=int,
        metavar="S",
        help="make an epoch of S steps; the next epoch continues the pass over the samples. --epochs and --validation "
        "count these epochs (the CDB study: --epochs 3 --steps-per-epoch 3)",
    )
    how.add_argument(
        "--validation",
        metavar="WHEN",
        help="read the validation split: none, published (when the application did), or N (after every N-th "
        "epoch). Default: published with --reader upstream or --compute train, else none",
    )
    how.add_argument(
        "--compute",
        metavar="HOW",
        help="what a trainer does between two batches. none: nothing. emulate:DEVICE: wait a published step time"
        " (default emulate:v100). emulate:50ms: wait this long. emulate:@FILE: wait what `dlio-bench "
        "calibrate --compute` measured. train or train:MODEL: train the published network on decoded "
        "samples, with TensorFlow. infer or infer:MODEL: send every sample of every split forward through "
        "it once, on one of the ranks",
    )
    how.add_argument(
        "--step-scale",
        type=_factors,
        metavar="F[,F...]",
        help="make the emulated step of rank i F[i] times as long, in turn: unequal trainers (default 1)",
    )
    how.add_argument(
        "--sync",
        metavar="WHEN",
        help="when ranks wait for each other: step (default), epoch, or none: never (default with --compute infer)",
    )
    how.add_argument(
        "--threads",
        type=int,
        metavar="T",
        help="reading threads of a rank; fewer if the data is in the page cache (default: readers that read ahead use "
        f"as many as make reading faster, up to {defaults.MOST_THREADS})",
    )
    how.add_argument(
        "--staging",
        type=parse_bytes,
        metavar="SIZE",
        help=f"size of the staging buffer of a rank (default {defaults.STAGING_BYTES // 10**6}MB, or two batches)",
    )
    how.add_argument(
        "--local-tier",
        type=Path,
        metavar="DIR",
        help="folder on node-local storage, for samples that a reader keeps and for staged copies (default: on one"
        " machine the temporary folder; in an allocation, on each node, the first of $SLURM_TMPDIR, $BBPATH,"
        " $PBS_JOBFS, $TMPDIR, /tmp and /var/tmp that lies on its own storage, neither in memory nor on a network)",
    )
    how.add_argument(
        "--tiers",
        type=tier_sizes,
        metavar="NAME=SIZE[,...]",
        help="sizes of a node's tiers in memory and on node-local storage, such as ram=10GB,disk=40GB (default: from "
        f"--system, else ram: at most {defaults.OF_MEMORY:g} of the memory and {defaults.OF_FREE:g} of what is "
        f"free of it, disk: {defaults.OF_FREE:g} of the free space in --local-tier if you give it; in an "
        "allocation the least that a node has)",
    )
    how.add_argument(
        "--emulate-pfs",
        type=parse_spec,
        metavar="SPEC",
        help=f"read through an emulated parallel file system, such as '{EXAMPLE}'; other programs' readers need FUSE",
    )
    training_arguments.add_streams(run)
    training_arguments.add_training(run)
    trust = run.add_argument_group("trials and trust")
    trust.add_argument(
        "--trials",
        type=int,
        metavar="T",
        help=f"timed trials (default {defaults.TRIALS}; {defaults.FEW_TRIALS} if a reader would take more than "
        f"{defaults.MOST_SECONDS:g} s; {defaults.TINY_TRIALS} with --tiny)",
    )
    trust.add_argument(
        "--warmup-trials",
        type=int,
        metavar="W",
        help=f"trials before the timed ones, recorded but not counted (default {defaults.WARMUP_TRIALS})",
    )
    trust.add_argument(
        "--cache",
        metavar="MODE",
        help="state of the page cache: cold-epochs (dropped before each epoch), first-epoch-cold (before each trial "
        "alone), cold (default: cold-epochs, or first-epoch-cold with readers of other programs), warm, or as-is",
    )
    trust.add_argument(
        "--io",
        metavar="MODE",
        help="how the files of the dataset are read. buffered: through the page cache (default). direct: past it, with "
        "O_DIRECT, so that cold needs no cache to be dropped (not tfdata, torch and upstream); tiers and staged copies "
        "stay buffered",
    )
    trust.add_argument(
        "--storage",
        type=Path,
        metavar="FILE",
        help="what `dlio-bench storage --out FILE` measured on the same path; text and report show it as the yardstick",
    )
    trust.add_argument(
        "--limits",
        type=Path,
        metavar="FILE",
        help="judge what was measured against the limits in this TOML file, and run as many trials as it asks for; "
        "limits of other workloads, readers and scales do not count",
    )
    trust.add_argument(
        "--predict",
        action="store_true",
        help="predict before the run how long the epochs of each reader take, and show it beside the measurement",
    )
    trust.add_argument(
        "--system",
        metavar="FILE",
        help="description of this machine, from `dlio-bench calibrate` (default with --predict: calibrate first,"
        " on test files beside the dataset)",
    )
    trust.add_argument(
        "--seed", type=int, metavar="S", help="seed of the order (default: a new one, which the result records)"
    )
    trust.add_argument(
        "--no-verify", dest="verify", action="store_false", help="skip the untimed pass that checks every byte"
    )
    _add_output(run)


def _add_output(run: argparse.ArgumentParser) -> None:
    output = run.add_argument_group("output")
    output.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of results and report (default dlio-results/TIME-WORKLOAD). A run that was stopped goes on there",
    )
    output.add_argument(
        "--trace",
        type=tracing.traces,
        metavar="WHAT",
        help="record where the time goes, for `dlio-bench trace`. spans: what every thread of every rank does. tf: "
        "besides, what TensorFlow does in the first steps of the last trial, with --compute train or in tf.data. "
        "xplane: besides, TensorFlow's own file of that",
    )
    output.add_argument(
        "--trace-steps", type=int, metavar="N", help=f"with --trace tf, trace N steps (default {tracing.STEPS})"
    )
    add_outcome(output)
    output.add_argument("--dry-run", action="store_true", help="print what the run would do, and end")
    output.add_argument("--json", action="store_true", help="print the results as JSON")
    output.add_argument("--verbose", action="store_true", help="print everything, not one screen with the answer")


def _add_what(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "workload",
        nargs="?",
        metavar="WORKLOAD",
        help="hepcnnb, cdb, cosmoflow, imagenet or wsi (see `dlio-bench list`)",
    )
    run.add_argument(
        "--from",
        dest="origin",
        type=Path,
        metavar="RESULT",
        help="repeat the run of this result.json, or of all results in a folder, on the same data, and say what "
        "differs now. Besides: only --out, --json, --dry-run, --data, --cache-dir, --local-tier, --storage, "
        "--launcher, --limits, --junit, --markdown, --require, --verbose",
    )


def _factors(value: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(factor) for factor in value.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise UsageError(f"--step-scale '{value}': give positive numbers, as in --step-scale 1,2.")
    return factors


def _names(flag: str, value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise UsageError(f"{flag} needs a name; `dlio-bench list` and `dlio-bench run --help` show them.")
    if len(set(names)) != len(names):
        raise UsageError(f"{flag} '{value}' has a name twice. Give each name once.")
    return names


def given(options: argparse.Namespace) -> dict[str, Any]:
    """What the user gave of the fields of `asked.options.Options`, by name."""
    values = values_of(options, "origin", "timeout")
    # nobody gave what is None, or a flag as it is without: --no-verify makes True False, the others False True
    return {name: value for name, value in values.items() if value is not None and value is not (name == "verify")}


def run(options: argparse.Namespace) -> int:
    """Run it."""
    from dlio_bench.harness.run import command, repeat
    from dlio_bench.harness.run.asked.options import Options

    if options.origin is not None:
        repeated, earlier = repeat.asked(options.origin, given(options))
        if note := repeat.incomplete(options.origin, earlier):
            print(f"dlio-bench: {note}", file=sys.stderr)
        return command.run(repeated, earlier)
    if options.workload is None:
        raise UsageError("run needs a WORKLOAD, such as cdb (see `dlio-bench list`), or --from RESULT.")
    values = given(options)
    scale = allocated_scale(nodes="nodes" in values, ranks_per_node="ranks_per_node" in values)
    by_scale: dict[str, Any] = {
        "nodes": (scale.nodes,),
        "ranks_per_node": scale.ranks_per_node,
        "scale_from": scale.origin,
    }
    return command.run(Options(**by_scale | values))
