"""Refuses, before a run makes anything, options that are unknown, out of range, or do not fit together."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.benchmarks.published_models.models import models_by_name
from dlio_bench.benchmarks.tensors import require_tensorflow
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import store_of
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.errors import EnvironmentFailure, UsageError, refuse, unknown
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.commands.checkpoints.options import SHARDED
from dlio_bench.harness.commands.checkpoints.parts import default_shards, parts
from dlio_bench.harness.commands.run.asked.job import reads_by_tensorflow
from dlio_bench.harness.commands.run.asked.options import COLD, Options
from dlio_bench.harness.commands.run.asked.tracing import TENSORFLOW
from dlio_bench.harness.commands.run.asked.training import INFER, TRAIN, parse_models
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.plan.model_parallel import require_pipelined, require_readable
from dlio_bench.harness.plan.policies import AHEAD, ON_DEMAND, OWN, REDRAWN, STREAM, TORCH, WEBDATASET, Policy
from dlio_bench.harness.plan.shape import JOB, KEEP, PIPELINE
from dlio_bench.harness.readers.torch_loader import require_torch
from dlio_bench.harness.readers.web_loader import require_webdataset
from dlio_bench.harness.storage.pfs.emulation import available
from dlio_bench.harness.storage.pfs.spec import FUSE, PROCESS, PfsSpec
from dlio_bench.reports.document.marks import COLD_EPOCHS, FIRST_EPOCH_COLD
from dlio_bench.reports.view.formatting import plural


def require_readers(options: Options, workload: Workload, rows: Sequence[Policy]) -> None:
    """UsageError for options that a reader cannot have; EnvironmentFailure for what this machine lacks."""
    if options.decode and workload.decode is None:
        raise UsageError(f"--decode: workload '{workload.name}' has no decoding stage. Leave it out.")
    pipelines = [row.name for row in rows if row.delivery == OWN]
    if pipelines and options.check_crc:
        raise UsageError(
            f"--check-crc: reader '{pipelines[0]}' is the application's published pipeline, with its own checks. Leave "
            "out one of the two. The untimed pass verifies every byte in any case."
        )
    if pipelines and options.cache == COLD_EPOCHS:
        raise UsageError(
            f"--cache cold-epochs would restart '{pipelines[0]}' each epoch, unlike the application. Use --cache "
            "first-epoch-cold."
        )
    _require_access(options, workload, rows)
    pfs = options.emulate_pfs
    if pfs is not None and options.cache == "warm" and not pfs.cache_bytes:
        raise UsageError(
            "--cache warm fills the emulated client cache, but --emulate-pfs gives it no size. Add cache=SIZE, larger "
            "than the dataset, or use --cache cold."
        )
    upstream = workload.upstream is not None and workload.upstream.tensorflow
    if needing := [row.name for row in rows if reads_by_tensorflow(workload, row)]:
        require_tensorflow(needing[0])
    if TENSORFLOW in options.trace and not needing and options.mode not in (TRAIN, INFER):
        reader = "upstream or tfdata" if upstream else "tfdata"
        raise UsageError(
            f"--trace tf records what TensorFlow does, but nothing of TensorFlow's is in this run. Add --reader "
            f"{reader} or --compute train, or use --trace spans."
        )
    if needing := [row.name for row in rows if row.delivery == TORCH]:
        require_torch(needing[0])
    if needing := [row.name for row in rows if row.delivery == WEBDATASET]:
        require_webdataset(needing[0])
    if pfs is not None and (options.data is None or store_of(options.data) is None):
        emulation(pfs, rows, None)


def cache_regime(options: Options, rows: Sequence[Policy]) -> str:
    """The state of the caches that --cache asks for: cold is cold before each epoch where the readers allow it.

    Readers of other programs would begin anew with each epoch.
    """
    if options.cache != COLD:
        return options.cache
    ours = all(row.delivery in (ON_DEMAND, AHEAD) for row in rows)
    return COLD_EPOCHS if ours else FIRST_EPOCH_COLD


def emulation(pfs: PfsSpec, rows: Sequence[Policy], container: str | None) -> PfsSpec:
    """The emulated file system, with the way that reads are held up: in the readers' processes where they allow it.

    container: of the dataset, if it is known. UsageError for a way that a reader cannot take, EnvironmentFailure where
    FUSE is needed and not there.
    """
    theirs = [f"reader '{row.name}' reads by itself" for row in rows if row.delivery not in (ON_DEMAND, AHEAD)]
    if container is not None and CONTAINERS[container].library is not None:
        theirs.append(f"samples stored as {container} are read by a library")
    if pfs.via == PROCESS and theirs:
        raise UsageError(
            f"--emulate-pfs via=process holds up reads of dlio-bench's own readers only, and {theirs[0]}. Leave via= "
            "out, or write via=fuse."
        )
    if pfs.via != FUSE and not theirs:
        return replace(pfs, via=PROCESS)
    if reason := available():
        why = f" ({theirs[0]}, which needs a mount)" if theirs else ""
        raise EnvironmentFailure(f"A parallel file system cannot be emulated here{why}. {reason}")
    return replace(pfs, via=FUSE)


def _require_pipeline(options: Options, workload: Workload, rows: Sequence[Policy]) -> None:
    """UsageError for what cannot be divided into stages."""
    for row in rows:
        require_pipelined(row)
    if not workload.labels:
        raise UsageError(
            f"--shard pipeline: the first rank reads samples and the last their labels, and workload '{workload.name}' "
            "stores both in one record. Use cdb or hepcnnb, or --shard job."
        )
    refused = {
        "--decode": options.decode,
        "--predict": options.predict,
        f"--compute {options.compute}": options.mode in (TRAIN, INFER),
    }
    refuse(
        refused,
        " needs whole samples, and with --shard pipeline no rank has both samples and labels. Leave one out; --shard "
        "job goes with both.",
    )


def _require_access(options: Options, workload: Workload, rows: Sequence[Policy]) -> None:
    """UsageError for ways to read the files' bytes that a reader does not know."""
    if options.io == DIRECT:
        _require_direct(options, rows)
    url = None if options.data is None else store_of(options.data)
    if url is not None:
        _require_ranges(options, rows, url)
    if options.shard == PIPELINE:
        _require_pipeline(options, workload, rows)


def _require_direct(options: Options, rows: Sequence[Policy]) -> None:
    """UsageError for what reads in its own way, or from no device."""
    if any(row.delivery == STREAM for row in rows):
        raise UsageError(
            "--io direct: producers of streams read through the page cache alone; direct reads of theirs are not "
            "built. Use --io buffered, or another reader, such as prefetch."
        )
    if theirs := [row.name for row in rows if row.delivery not in (ON_DEMAND, AHEAD)]:
        raise UsageError(
            f"--io direct: reader '{theirs[0]}' reads through its framework, which knows only the page cache. Use "
            "--io buffered, or another reader, such as prefetch."
        )
    if options.emulate_pfs is not None:
        raise UsageError(
            "--io direct: the emulated file system has no page cache to pass: each of its reads already asks it, or "
            "the client cache that --emulate-pfs cache=SIZE gives it. Use --io buffered, and leave cache= out for "
            "reads that no cache serves."
        )


def _require_ranges(options: Options, rows: Sequence[Policy], url: str) -> None:
    """UsageError for what cannot read ranges of objects in a store."""
    if theirs := [row.name for row in rows if row.delivery not in (ON_DEMAND, AHEAD)]:
        raise UsageError(
            f"--data {url}: reader '{theirs[0]}' reads files, through its framework or in producers of streams, and "
            "an object store has none. Use another reader, such as prefetch or naive, or copy the dataset to a folder."
        )
    if options.io == DIRECT:
        raise UsageError(
            f"--io direct: {url} is in an object store, of which this machine has no page cache. Leave it out."
        )
    if options.cache == "warm":
        raise UsageError(
            f"--cache warm: {url} is in an object store, of which this machine has no page cache to warm. Use --cache "
            "cold, and --tiers for samples that nodes keep in memory."
        )
    if options.emulate_pfs is not None and options.emulate_pfs.cache_bytes:
        raise UsageError(
            f"--emulate-pfs cache=SIZE is a client cache, and clients of an object store, as of {url}, have none. "
            "Leave cache= out."
        )
    if options.emulate_pfs is not None and (options.emulate_pfs.opens or options.emulate_pfs.via == FUSE):
        word = "opens=" if options.emulate_pfs.opens else "via=fuse"
        raise UsageError(
            f"--emulate-pfs {word} is of file systems, and {url} is an object store, whose requests are held up in the "
            f"processes that make them. Leave {word} out."
        )
    if options.emulate_pfs is not None and allocation.nodes() is not None:
        raise UsageError(
            f"--emulate-pfs holds requests to {url} up by links that processes of one machine share, and this is an "
            "allocation of several. Run outside of it, or leave it out."
        )
    if options.predict:
        raise UsageError(
            f"--predict measures and models file systems, and {url} is in an object store, which is not modelled. "
            "Leave it out."
        )


def require_values(options: Options) -> None:
    """UsageError for numbers that do not fit together."""
    if options.step_scale and options.mode != "emulate":
        raise UsageError(f"--step-scale scales emulated compute, and --compute is {options.compute}. Leave one out.")
    ranks = max(options.nodes) * options.ranks_per_node * len(parse_models(options.models))
    if len(options.step_scale) > ranks:
        raise UsageError(
            f"--step-scale {','.join(f'{factor:g}' for factor in options.step_scale)} has {len(options.step_scale)} "
            f"factors, one for each rank in turn, but only {plural(ranks, 'rank')} of the job can use them. Give at "
            f"most {ranks}, or ask for more ranks."
        )
    _require_checkpoint_load(options)
    if options.data is not None and options.max_data is not None:
        raise UsageError(
            "--max-data limits a dataset that the run makes, but --data names an existing one. Give one of the two."
        )


def _require_checkpoint_load(options: Options) -> None:
    """UsageError for checkpoints beside the input that cannot be."""
    if not options.checkpoint_load:
        if options.checkpoint_load_every or options.checkpoint_load_fraction != 1 or options.checkpoint_load_dir:
            raise UsageError(
                "--checkpoint-load-every, -fraction and -dir say how a model's checkpoints are written. Name the model "
                "with --checkpoint-load, such as llama3-8b, or leave them out."
            )
        return
    if options.checkpoint_load not in models_by_name():
        raise unknown("--checkpoint-load", options.checkpoint_load, list(models_by_name()))
    if options.checkpoint_load_every < 1:
        raise UsageError("--checkpoint-load needs --checkpoint-load-every K: after how many steps one is written.")
    if options.checkpoint_load_dir and not Path(options.checkpoint_load_dir).is_dir():
        raise UsageError(
            f"--checkpoint-load-dir {options.checkpoint_load_dir} is not a folder. Name one that is there."
        )
    if options.predict:
        raise UsageError("--predict foresees no checkpoints beside the input. Leave it or --checkpoint-load out.")
    model = models_by_name()[options.checkpoint_load]
    for nodes in options.nodes:
        ranks = nodes * options.ranks_per_node * len(parse_models(options.models))
        parts(model, ranks, default_shards(model, ranks), SHARDED, options.checkpoint_load_fraction)


def require_written(options: Options, steps: int) -> None:
    """UsageError where no checkpoint beside the input would be written. steps: of a trial at the largest node count."""
    every = options.checkpoint_load_every
    if options.checkpoint_load and every > steps:
        raise UsageError(
            f"--checkpoint-load-every {every}: a trial has {plural(steps, 'step')}, so that no checkpoint would be "
            f"written. Write one after at most {steps}, or ask for longer trials, with --epochs, "
            "--min-seconds or a larger --steps."
        )


def require_plans(options: Options, rows: Sequence[Policy]) -> None:
    """UsageError for --shard, --last and --steps-per-epoch that a reader or another option does not allow."""
    if options.steps_per_epoch is not None:
        _require_parts(options, rows)
    if options.shard == JOB:
        for row in rows:
            require_readable(row)
    if options.last != KEEP:
        return
    if options.steps is not None or options.predict:
        flag = "--predict" if options.predict else f"--steps {options.steps}"
        raise UsageError(
            f"--last keep makes batches of unequal size, and {flag} needs steps of equal size. Use one of the two."
        )
    if options.mode == "emulate":
        raise UsageError(
            "--last keep makes the last batches smaller, but an emulated step is always that of a whole batch. Use "
            "--compute none or infer, or --last pad."
        )
    for row in rows:
        if row.delivery == OWN or not row.exactly_once:
            raise UsageError(
                f"--last keep delivers every sample once, but reader '{row.name}' has an order that does not. Use "
                "--last drop, or another reader, such as prefetch."
            )


def _require_parts(options: Options, rows: Sequence[Policy]) -> None:
    flag = f"--steps-per-epoch {options.steps_per_epoch}"
    if options.steps is not None:
        raise UsageError(
            f"{flag} and --steps {options.steps} both say how long a trial is. Leave one out: a trial of --epochs E "
            "with --steps-per-epoch S has E times S steps."
        )
    if options.last not in (None, "drop"):
        raise UsageError(f"{flag} needs steps of equal size. Leave out --last {options.last}, or use --last drop.")
    if options.mode == INFER:
        raise UsageError(f"{flag} leaves samples out, but --compute infer predicts all of them. Use one of the two.")
    for row in rows:
        if row.order == REDRAWN:
            raise UsageError(
                f"{flag} cuts a pass over the samples into epochs, but reader '{row.name}' draws a new order for each "
                "epoch. Use another reader, such as prefetch."
            )
