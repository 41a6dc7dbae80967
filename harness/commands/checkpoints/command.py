"""`dlio-bench checkpoint`: space checked, ranks launched, checkpoints written, read back and compared, told, saved."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dlio_bench.benchmarks.published_models import models
from dlio_bench.benchmarks.published_models.models import SUBSET, CheckpointModel
from dlio_bench.errors import BenchError, DataError, UsageError
from dlio_bench.free_space import block_bytes, free_bytes, free_files
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.environment import provenance
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.commands.checkpoints import sets
from dlio_bench.harness.commands.checkpoints.job import Job, require_space, required_bytes, required_files
from dlio_bench.harness.commands.checkpoints.options import MOST_SHARDS, Options
from dlio_bench.harness.commands.checkpoints.parts import default_shards, parts, sizes, total
from dlio_bench.harness.ground.folders import output_folder, require_storage, work_folder
from dlio_bench.harness.ground.launching import load_parts, run_ranks, why_ended
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.reports.checkpoint import document as report
from dlio_bench.reports.checkpoint.types import SCHEMA, Document
from dlio_bench.reports.checkpoint.view import view
from dlio_bench.reports.document import result_file
from dlio_bench.reports.document.marks import INTERRUPTED
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.judging import judge
from dlio_bench.reports.view.formatting import plural
from dlio_bench.reports.view.sections import NAME
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrap

FOLDER = "dlio-bench-checkpoint-"
CHECKPOINTS = 2  # of a trial, by default


def checkpoint(options: Options) -> int:
    """The whole command: 0 when all was measured, 3 where the result is INVALID. Raises BenchError."""
    job = job_of(options)
    model = models.models_by_name()[job.model]
    ranks = Ranks("commands.checkpoints.rank", job.nodes, job.ranks_per_node, options.launcher, job.virtual)
    argv = ranks.start().argv  # what cannot be launched is refused before anything is made
    if options.dry_run:
        planned = _plan_document(job, argv, options.folder)
        print(json.dumps(planned) if options.json else _describe_plan(options, model, job, planned))
        return judge.PASS
    require_space(options.folder, job)
    progress = Progress()
    with output_folder(options.out, f"checkpoint-{options.model}") as folder:
        work = work_folder(folder)
        try:
            with temp_folder(FOLDER, options.folder) as place:
                placed, show = replace(job, place=str(place.absolute())), progress.lines_under("checkpoint")
                measured = run_ranks(ranks.start, placed, work, show, share="choose one with --out", folder_stays=True)
        except (BenchError, KeyboardInterrupt) as error:
            # what there is beside the trials, and each that had ended
            about, *trials = [{}] if isinstance(error, DataError) else load_parts(work) or [{}]
            if not trials:
                raise _stopped_error(error, "") from error
            _save(_document(options, model, job, {**about, "trials": trials}), folder)
            done = f"{len(trials)} of {plural(job.trials, 'trial')}"
            raise _stopped_error(error, f"{done} had ended: their result is kept in {folder}.") from error
        progress.clear()
        document = _save(_document(options, model, job, measured), folder)
    print(json.dumps(to_json(document)) if options.json else f"{view(document).text()}\n  results  {folder}")
    return judge.INVALID if document.class_ == "INVALID" else judge.PASS


def _save(measured: Document, folder: Path) -> Document:
    """The result in the folder, with its page."""
    document = report.complete(measured)
    result_file.save(document, folder)
    view(document).write(folder / NAME)
    return document


def _stopped_error(error: BenchError | KeyboardInterrupt, told: str) -> BenchError:
    """The error that ends the command. told: a sentence on what is there; empty: nothing is."""
    kind, why = why_ended(error)
    nothing = "No trial had ended, and nothing is kept." if isinstance(error, KeyboardInterrupt) else ""
    return kind(f"{why} {told or nothing}".strip())


def _require(options: Options) -> None:
    """UsageError for what is out of range, not there or does not fit together."""
    require_storage(options.folder, f"--folder {options.folder}")
    if options.nodes * (options.ranks_per_node or 1) > MOST_SHARDS:
        raise UsageError(
            f"--nodes {options.nodes} and --ranks-per-node {options.ranks_per_node}: together at most {MOST_SHARDS} "
            "ranks write checkpoints."
        )


def job_of(options: Options) -> Job:
    """What is asked for. UsageError for what is out of range, or a scale that model or allocation do not allow."""
    model = models.find(options.model)
    _require(options)
    virtual = allocation.are_virtual(options.nodes)
    subset = options.model == SUBSET
    per_node = options.ranks_per_node or (max(1, models.SUBSET_RANKS // options.nodes) if subset else 1)
    ranks = options.nodes * per_node
    if subset and (
        ranks != models.SUBSET_RANKS or options.shards not in (None, models.SUBSET_RANKS) or options.fraction < 1
    ):
        raise UsageError(
            f"{SUBSET} is {models.SUBSET_RANKS} ranks that write whole checkpoints ({models.SUBSET_SOURCE}), not "
            f"{plural(ranks, 'rank')}{f' and {options.fraction:.3%} of them' if options.fraction < 1 else ''}. Ask for "
            "llama3-8b, which takes any number of ranks, --shards and --fraction."
        )
    job = Job(
        model=model.name,
        nodes=options.nodes,
        ranks_per_node=per_node,
        virtual=virtual,
        shards=options.shards or default_shards(model, ranks),
        layout=options.layout,
        fraction=options.fraction,
        checkpoints=options.checkpoints or (models.SUBSET_CHECKPOINTS if subset else CHECKPOINTS),
        trials=options.trials,
        fsync=options.fsync,
        seed=int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed,
        place="",
    )
    _ = job.parts  # refuses shards that cannot be
    return job


def fsyncs(job: Job) -> int:
    """Calls of fsync that a checkpoint takes: each rank's for each of its files, and those of the commit."""
    return len({(part.rank, part.file) for part in job.parts}) + sets.OF_COMMIT if job.fsync else 0


def _document(options: Options, model: CheckpointModel, job: Job, measured: dict[str, Any]) -> Document:
    stopped = len(measured["trials"]) < job.trials
    content = {
        "schema": SCHEMA,
        "kind": "checkpoint",
        "workload": options.model,
        "model": {
            "name": model.name, "title": model.title, "parameters": model.parameters, "source": model.source,
            "note": model.note, "whole_bytes": total(parts(model, job.ranks, job.shards, job.layout)),
        },
        **provenance(),
        "files": len(sizes(job.parts)),
        "bytes": total(job.parts),
        "fsyncs_expected": fsyncs(job),
        "folder": str(options.folder.absolute()),
        "marks": [INTERRUPTED] if stopped else [],  # others follow from what is recorded
        **{name: getattr(job, name) for name in (
            "code_digest", "layout", "shards", "fraction", "nodes", "ranks_per_node", "checkpoints", "fsync", "seed",
            "shift",
        )},
        **measured,
    }  # fmt: skip
    return convert(content, Document)


def _plan_document(job: Job, argv: Sequence[str], place: Path) -> dict[str, Any]:
    """What --dry-run --json prints. place: a folder on the storage."""
    chosen = job.parts
    return {
        "model": job.model,
        "layout": job.layout,
        "ranks": job.ranks,
        "shards": job.shards,
        "files": len(sizes(chosen)),
        "bytes": total(chosen),
        "rank_bytes": [sum(part.bytes for part in chosen if part.rank == rank) for rank in range(job.ranks)],
        "checkpoints": job.checkpoints,
        "trials": job.trials,
        "fsyncs": fsyncs(job),
        "shift": job.shift,
        "required_bytes": required_bytes(job, block_bytes(place)),
        "available_bytes": free_bytes(place),
        "required_files": required_files(job),
        "available_files": free_files(place),
        "argv": list(argv),
    }


def _describe_plan(options: Options, model: CheckpointModel, job: Job, planned: dict[str, Any]) -> str:
    """What --dry-run prints."""
    free, needed = planned["available_bytes"], planned["required_bytes"]
    lacks = free is not None and free < needed
    each = format_bytes(max(planned["rank_bytes"]))
    reader = f"rank r reads what rank r + {job.shift} wrote" if job.shift else "the only rank reads what it wrote"
    entries = {
        "model": f"{model.title}, {model.parameters:,} parameters ({model.source}). {model.note}".strip(),
        "files": f"{plural(planned['files'], 'file')} ({job.layout}), {format_bytes(planned['bytes'])} a checkpoint, "
        f"at most {each} a rank; the state of {plural(job.shards, 'rank')}"
        f"{f', cut to {100 * job.fraction:.4g} % of the bytes' if job.fraction < 1 else ''}",
        "trials": f"{plural(job.trials, 'trial')}; in each {plural(job.checkpoints, 'checkpoint')} written, dropped "
        f"from the page cache, and read from the oldest on: {reader}",
        "fsync": f"{planned['fsyncs']} calls for a checkpoint"
        if job.fsync
        else "none: what is written may still lie in memory",
        "space": f"{needed} bytes are required in {options.folder}, "
        + ("nobody knows how many are available" if free is None else f"{free} are available")
        + (f": {needed - free} are missing" if lacks else "")
        + f"; {planned['required_files']} files and folders"
        + ("" if planned["available_files"] is None else f", of {planned['available_files']} that can be made"),
        "checks": "every byte (else the command ends with status 5); calls of fsync, and a cold cache before the reads "
        "(else INVALID, status 3)",
        "command": shlex.join(planned["argv"]) or "none: this process is the rank",
    }
    return "\n".join(line for label, words in entries.items() for line in wrap(words, f"  {label:<9}", 11))
