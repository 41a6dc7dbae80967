"""The options of `dlio-bench run`. Everything else reads the resolved struct, and nothing reads the command line."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import field
from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked import tracing
from dlio_bench.harness.ground import defaults
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground.outcome import Junit, Markdown, Outcome, Require
from dlio_bench.harness.readers.options import ReaderOptions
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, PfsSpec, parse_spec
from dlio_bench.harness.training.exchange.options import DEFAULT_TIMEOUT
from dlio_bench.reports.document.marks import COLD_BEFORE
from dlio_bench.units import format_seconds

COLD, WARM = "cold", "warm"  # COLD is asked for; whether each epoch or the first one is cold follows from the readers
CACHE_MODES = (COLD, *COLD_BEFORE, WARM, "as-is")
SYNC_MODES = ("step", "epoch", "none")
SHARDS = ("rank", "node", "job", "pipeline")
LASTS = ("drop", "pad", "keep")
MOST_SEED = 2**62  # each trial adds its number, and the seed of a plan has 64 bits


def _factors(text: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(factor) for factor in text.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise UsageError(f"'{text}': give positive numbers, as in --step-scale 1,2.")
    return factors


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"'{text}' is not a number of seconds from 0 on. Write one, such as 5.")
    return seconds


class Options(ReaderOptions, frozen=True):
    """What the user gave. None: nothing, so that the default comes from workload, data or machine."""

    workload: str
    nodes: Annotated[
        tuple[int, ...],
        opt.counts(
            "N", "number of nodes; give several to compare them (default: all of the scheduler's allocation, else 1)"
        ),
        opt.Group("scale"),
    ] = (1,)
    scale_from: str = ""  # source of the node and rank counts that the user did not set
    ranks_per_node: Annotated[
        int,
        opt.count(
            "R",
            "ranks on each node, of each model; a rank is one trainer (default: the allocation's tasks per node, else "
            "its GPUs per node, else 1)",
        ),
    ] = 1
    models: Annotated[
        str | None,
        opt.option(
            "train several models side by side, each with nodes x ranks-per-node ranks of its own, so that K times as "
            "many ranks train. All have one plan, and none waits for another. --reader stream reads the dataset once "
            "for all of them; with other readers each model reads for itself, except where ranks of a node keep "
            "samples for each other (prefetch, cooperative, clairvoyant, ...): models share those, and the dataset may "
            "be read once too. The report tells how many times it was read. With --compute train, name the networks: "
            "resnet50,resnet50:lr=0.2 trains one at its published learning rates, one at 0.2 throughout",
            metavar="K|NAME[:lr=X][,...]",
        ),
    ] = None
    launcher: opt.JoiningLauncher = None
    memory_per_node: Annotated[
        int | None,
        opt.size("memory that a node may use (default: the machine's, which virtual nodes share)", least=1),
    ] = None
    data: Annotated[
        Path | None,
        opt.folder("read this dataset: a folder, or s3://bucket/prefix (default: make one and keep it)"),
        opt.Group("data"),
    ] = None
    variant: opt.Variant = None
    max_data: Annotated[
        int | None,
        opt.size(f"if --data is not given, make at most this much (default {defaults.MOST_BYTES // 10**9}GB)", least=1),
    ] = None
    cache_dir: opt.CacheDir = None
    tiny: Annotated[bool, opt.flag("shrink the samples: a smoke test that takes seconds and measures nothing")] = False
    readers: Annotated[
        tuple[str, ...],
        opt.names(
            "naive, shuffled, prefetch, staged, cooperative, tfdata, torch, webdataset, stream, upstream, ... (see "
            "`dlio-bench list`; default prefetch)",
            "--reader",
        ),
        opt.Group("readers and steps"),
    ] = ("prefetch",)
    orders: Annotated[
        tuple[str, ...],
        opt.names("replace the order of each reader, for example by file-shuffle or buffered-shuffle(100)", "--order"),
    ] = ()
    placements: Annotated[
        tuple[str, ...],
        opt.names(
            "replace the placement of each reader: none, stage-partition, stage-replicate, stage-subset, cooperative, "
            "clairvoyant, ... (see `dlio-bench list`)",
            "--placement",
        ),
    ] = ()
    deliveries: Annotated[
        tuple[str, ...],
        opt.names(
            "replace the delivery of each reader: 'on demand', ahead, tf.data, torch, webdataset or stream",
            "--delivery",
        ),
    ] = ()
    shard: Annotated[
        str,
        opt.choice(
            "WHAT",
            "who owns a share of the samples: rank (default) or node. With job, all ranks read the whole dataset in "
            "the same order, as ranks that hold parts of one model do; with pipeline, the first rank reads the samples "
            "and the last one their labels, as stages of a pipeline do",
            SHARDS,
        ),
    ] = "rank"
    last: Annotated[
        str | None,
        opt.choice(
            "HOW",
            "what happens to samples that do not fill the last step. drop: they are left out (default). pad: the first "
            "samples of the epoch fill the step. keep: the last batches are smaller (default with --compute infer)",
            LASTS,
        ),
    ] = None
    decode: Annotated[bool, opt.flag("decode the samples as the application does before training")] = False
    batch: Annotated[
        int | None,
        opt.count(
            "B", "samples in a step of one rank (default: the published batch, or less if there are few samples)"
        ),
    ] = None
    epochs: Annotated[
        int | None,
        opt.count(
            "E",
            "epochs in a trial (default 1; more if a trial would be shorter than --min-seconds or "
            f"{defaults.TIMED_STEPS} steps)",
        ),
    ] = None
    min_seconds: Annotated[
        float | None,
        opt.option(
            f"shortest trial that may be compared, in seconds (default {defaults.TIMED_SECONDS:g}; 0 with --tiny). "
            "Data and epochs are chosen to reach it; shorter trials are marked SHORT. With 0, "
            f"{defaults.STEPS} steps are enough",
            metavar="S",
            type=_seconds,
        ),
    ] = None
    steps: Annotated[
        int | None,
        opt.count(
            "N",
            "run at most N steps in a trial, in epochs of equal length (default: whole epochs); a note in the result "
            "names what that leaves out",
        ),
    ] = None
    steps_per_epoch: Annotated[
        int | None,
        opt.count(
            "S",
            "make an epoch of S steps; the next epoch continues the pass over the samples. --epochs and --validation "
            "count these epochs (the CDB study: --epochs 3 --steps-per-epoch 3)",
        ),
    ] = None
    validation: Annotated[
        str | None,
        opt.option(
            "read the validation split: none, published (when the application did), or N (after every N-th epoch). "
            "Default: published with --reader upstream or --compute train, else none",
            metavar="WHEN",
        ),
    ] = None
    compute: Annotated[
        str,
        opt.option(
            "what a trainer does between two batches. none: nothing. emulate:DEVICE: wait a published step time "
            "(default emulate:v100). emulate:50ms: wait this long. emulate:@FILE: wait what `dlio-bench calibrate "
            "--compute` measured. train or train:MODEL: train the published network on decoded samples, with "
            "TensorFlow. infer or infer:MODEL: send every sample of every split forward through it once, on one of "
            "the ranks",
            metavar="HOW",
        ),
    ] = "emulate"
    step_scale: Annotated[
        tuple[float, ...],
        opt.option(
            "make the emulated step of rank i F[i] times as long, in turn: unequal trainers (default 1)",
            metavar="F[,F...]",
            type=_factors,
        ),
    ] = ()
    sync: Annotated[
        str | None,
        opt.choice(
            "WHEN",
            "when ranks wait for each other: step (default), epoch, or none: never (default with --compute infer)",
            SYNC_MODES,
        ),
    ] = None
    local_tier: Annotated[
        Path | None,
        opt.folder(
            "folder on node-local storage, for samples that a reader keeps and for staged copies (default: on one "
            "machine the temporary folder; in an allocation, on each node, the first of $SLURM_TMPDIR, $BBPATH, "
            "$PBS_JOBFS, $TMPDIR, /tmp and /var/tmp that lies on its own storage, neither in memory nor on a network)"
        ),
    ] = None
    tiers: Annotated[
        Mapping[str, int] | None,
        opt.option(
            "sizes of a node's tiers in memory and on node-local storage, such as ram=10GB,disk=40GB (default: from "
            f"--system, else ram: at most {defaults.OF_MEMORY:g} of the memory and {defaults.OF_FREE:g} of what is "
            f"free of it, disk: {defaults.OF_FREE:g} of the free space in --local-tier if you give it; in an "
            "allocation the least that a node has)",
            metavar="NAME=SIZE[,...]",
            type=opt.parse_tiers,
        ),
    ] = None
    emulate_pfs: Annotated[
        PfsSpec | None,
        opt.option(
            f"read through an emulated parallel file system, such as '{EXAMPLE}'; other programs' readers need FUSE",
            metavar="SPEC",
            type=parse_spec,
        ),
    ] = None
    stream: Annotated[
        str | None,
        opt.option(
            "which trainer gets which batch. planned: the plan's global shuffle, from all producers in turn (default). "
            "round-robin: ADIOS2 deals each step to the trainers in turn. all: every trainer gets every batch. "
            "on-demand: a trainer that asks gets the next one",
            metavar="HOW",
        ),
        opt.Group("streams (--reader stream)"),
    ] = None
    producers: Annotated[
        int | None,
        opt.count("N", "ranks that read the dataset and publish it, beyond those that train (default 1)"),
    ] = None
    inline: Annotated[bool, opt.flag("no ranks of their own: a thread of each trainer's process is its producer")] = (
        False
    )
    stream_engine: Annotated[
        str | None,
        opt.choice("NAME", "of ADIOS2. sst: over the network (default). bp: through files in --out", ("sst", "bp")),
    ] = None
    stream_transport: Annotated[
        str | None,
        opt.choice(
            "NAME",
            "of the data of sst. wan: sockets (default). rdma, ucx: with an ADIOS2 that has them, whose prefix "
            "ADIOS2_DIR names; refused where ADIOS2 would take another",
            ("wan", "rdma", "ucx"),
        ),
    ] = None
    stream_queue: Annotated[
        int | None, opt.count("N", "most batches that a stream holds for its trainers (default 4)")
    ] = None
    stream_full: Annotated[
        str | None,
        opt.choice(
            "HOW",
            "what a producer does when the queue is full. block: wait (default). discard: ADIOS2 drops a batch, and "
            "the run ends with an error, as samples are missing",
            ("block", "discard"),
        ),
    ] = None
    checkpoint_load: Annotated[
        str,
        opt.option(
            "write checkpoints of a model's size beside the input, each rank its share: llama3-8b or another of "
            "`dlio-bench checkpoint --help`",
            metavar="MODEL",
        ),
        opt.Group("checkpoints beside the input (with any --compute)"),
    ] = ""
    checkpoint_load_every: Annotated[int, opt.count("K", "write one after every K steps")] = 0
    checkpoint_load_fraction: Annotated[
        float, opt.share("cut the bytes of its files to this share, such as 1%% (default 100%%)")
    ] = 1.0
    checkpoint_load_dir: Annotated[
        str,
        opt.option(
            "write them in a folder of this one (default: the folder of the results); the two newest stay until the "
            "trial ends",
            metavar="DIR",
            type=opt.absolute,
        ),
    ] = ""
    exchange: Annotated[
        str | None,
        opt.option(
            "who averages the gradients: horovod, mpi or none (default: horovod if it works with this TensorFlow, else "
            "mpi)",
            metavar="KIND",
        ),
        opt.Group("training (--compute train)"),
    ] = None
    precision: Annotated[
        str | None,
        opt.choice(
            "NAME",
            "in which the network computes, its weights and loss being float32 (default: as published, float16 for "
            "cdb summit, else float32)",
            ("float32", "float16", "bfloat16"),
        ),
    ] = None
    fp16_gradients: Annotated[bool, opt.flag("send gradients as float16, which halves their bytes")] = False
    gradient_lag: Annotated[
        int,
        opt.option(
            "1: each step applies the gradients of the step before, while its own are on their way (default 0)",
            metavar="N",
            type=int,
        ),
    ] = 0
    hierarchical: Annotated[bool, opt.flag("add up gradients within each node, then between the nodes")] = False
    leaders: Annotated[
        int | None,
        opt.option(
            "with --hierarchical: N ranks of each node talk to other nodes, each for a part of the gradients, as one "
            "for each network interface (default 1)",
            metavar="N",
            type=int,
        ),
    ] = None
    exchange_timeout: Annotated[
        float | None,
        opt.seconds(
            f"end the run if a rank waits this long for the others (default {format_seconds(DEFAULT_TIMEOUT)})"
        ),
    ] = None
    checkpoint: Annotated[
        int | None,
        opt.count(
            "K",
            "save weights and optimiser after every K steps, beside the result; rank 0 writes, and the two newest stay",
        ),
    ] = None
    resume: Annotated[
        Path | None,
        opt.folder(
            "start from the newest whole checkpoint in DIR, which must be of the end of an epoch, and run one trial of "
            "--epochs further epochs, on the same dataset. With --compute infer: predict with its weights"
        ),
    ] = None
    trials: Annotated[
        int | None,
        opt.count(
            "T",
            f"timed trials (default {defaults.TRIALS}; {defaults.FEW_TRIALS} if a reader would take more than "
            f"{defaults.MOST_SECONDS:g} s; {defaults.TINY_TRIALS} with --tiny)",
        ),
        opt.Group("trials and trust"),
    ] = None
    warmup_trials: Annotated[
        int | None,
        opt.count(
            "W",
            f"trials before the timed ones, recorded but not counted (default {defaults.WARMUP_TRIALS})",
            least=0,
        ),
    ] = None
    cache: Annotated[
        str,
        opt.choice(
            "MODE",
            "state of the page cache: cold-epochs (dropped before each epoch), first-epoch-cold (before each trial "
            "alone), cold (default: cold-epochs, or first-epoch-cold with readers of other programs), warm, or as-is",
            CACHE_MODES,
        ),
    ] = COLD
    storage: Annotated[
        Path | None,
        opt.file(
            "what `dlio-bench storage --out FILE` measured on the same path; text and report show it as the yardstick"
        ),
    ] = None
    limits: Annotated[
        Path | None,
        opt.file(
            "judge what was measured against the limits in this TOML file, and run as many trials as it asks for; "
            "limits of other workloads, readers and scales do not count"
        ),
    ] = None
    predict: Annotated[
        bool,
        opt.flag("predict before the run how long the epochs of each reader take, and show it beside the measurement"),
    ] = False
    system: Annotated[
        str | None,
        opt.option(
            "description of this machine, from `dlio-bench calibrate` (default with --predict: calibrate first, on "
            "test files beside the dataset)",
            metavar="FILE",
        ),
    ] = None
    seed: Annotated[
        int | None,
        opt.count("S", "seed of the order (default: a new one, which the result records)", least=0, most=MOST_SEED),
    ] = None
    verify: Annotated[bool, opt.flag("skip the untimed pass that checks every byte", "--no-verify")] = True
    out: Annotated[
        Path | None,
        opt.folder(
            "folder of results and report (default dlio-results/TIME-WORKLOAD). A run that was stopped goes on there"
        ),
        opt.Group("output"),
    ] = None
    trace: Annotated[
        tuple[str, ...],
        opt.option(
            "record where the time goes, for `dlio-bench trace`. spans: what every thread of every rank does. tf: "
            "besides, what TensorFlow does in the first steps of the last trial, with --compute train or in tf.data. "
            "xplane: besides, TensorFlow's own file of that",
            metavar="WHAT",
            type=tracing.traces,
        ),
    ] = ()
    trace_steps: Annotated[int, opt.count("N", f"with --trace tf, trace N steps (default {tracing.STEPS})")] = (
        tracing.STEPS
    )
    junit: Junit = None
    markdown: Markdown = None
    require: Require = None
    dry_run: Annotated[bool, opt.flag("print what the run would do, and end")] = False
    json: Annotated[bool, opt.flag("print the results as JSON")] = False
    verbose: Annotated[bool, opt.flag("print everything, not one screen with the answer")] = False
    by_nodes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # options that a node count has of its own

    @property
    def outcome(self) -> Outcome:
        """What a CI job takes from the run."""
        return Outcome(self.junit, self.markdown, self.require)

    @property
    def measured_options(self) -> "Options":
        """Without the options that change nothing in what is measured."""
        return replace(self, out=None, limits=None, junit=None, markdown=None, require=None, json=False, verbose=False)

    @property
    def mode(self) -> str:
        """--compute without its detail: none, emulate, train or infer."""
        return self.compute.partition(":")[0]

    def at_node_count(self, nodes: int) -> "Options":
        """The options of one node count."""
        return replace(self, **self.by_nodes.get(nodes, {}))
