"""`dlio-bench run`: data made ready, ranks launched for every node count, results written, the report rendered."""

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import launchers
from dlio_bench.harness.cluster.code import code_digest
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.cluster.process import launch, python_command
from dlio_bench.harness.run import data, rank
from dlio_bench.harness.run.draft import Setting, draft
from dlio_bench.harness.run.dry import describe
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.run.options import Options
from dlio_bench.harness.run.progress import Progress
from dlio_bench.harness.run.request import Request, look_up
from dlio_bench.harness.run.sizing import Cut
from dlio_bench.harness.storage.memory import memory_bytes
from dlio_bench.reports import html, judge, result, text
from dlio_bench.units import format_bytes

TRIALS, TINY_TRIALS, WARMUP_TRIALS = 3, 1, 1
STAGING_BYTES = 256_000_000  # a rank, where two batches fit


@dataclass(frozen=True)
class Launch:
    """How a job's ranks are started; `argv` is empty for the one rank that runs in this process."""

    launcher: str
    argv: tuple[str, ...]
    env: dict[str, str]


def run(options: Options) -> int:
    """The whole command. Returns the status of the gravest result; raises BenchError for what prevents a result."""
    request = look_up(options)
    if options.dry_run:
        return _dry_run(request)
    progress = Progress()
    dataset = _dataset(request, progress)
    cut = request.cut(dataset.samples)
    finished = []
    with _output_folder(options) as folder, _tier_folders(options) as tiers:
        for nodes in options.nodes:
            job = _job(request, cut, nodes, dataset.folder, dataset.digest, _view_bytes(request, dataset), tiers)
            progress.heading = f"{job.workload}  {job.nodes}x{job.ranks_per_node} ranks"
            progress.trials = job.trials + job.warmup_trials
            for drafted, steps in _measure(request, job, dataset, cut.notes, folder, progress):
                complete = result.complete(drafted, steps)
                result.save(complete, steps, folder / f"{complete['policy']['alias']}-{job.nodes}x{job.ranks_per_node}")
                finished.append((complete, steps))
        html.write(finished, folder / "report.html")
    progress.done()
    results = [complete for complete, _ in finished]
    if options.json:
        print(json.dumps(results))
    else:
        print(f"{text.render(results)}\n\n  results  {folder}\n  report   {folder / 'report.html'}")
    return judge.exit_status(results)


def _dry_run(request: Request) -> int:
    options, layout = request.options, request.layout
    if options.data is not None:
        dataset = data.given(options.data, layout)
        samples, folder, made = dataset.samples, options.data, True
        stored = sum(file.bytes for file in dataset.manifest.files)
    else:
        files = request.files()
        samples = sum(spec.samples for spec in layout.spec_files(files))
        folder = data.made_folder(layout, files, data.cache_folder(options.cache_dir))
        made, stored = (folder / "manifest.json").exists(), files * layout.file_bytes
    cut = request.cut(samples)
    view = _layout_view_bytes(request)
    for nodes in options.nodes:
        job = _job(request, cut, nodes, folder, "", view, ())
        plan = _launch(request, job, Path("JOB"))
        print(
            describe(
                job,
                samples=samples,
                stored_bytes=stored,
                view_bytes=view,
                memory_per_node=_node_memory(options, job),
                argv=plan.argv or ("(in process)",),
                notes=cut.notes,
                made=made,
            )
        )
    return 0


def _dataset(request: Request, progress: Progress) -> Dataset:
    options = request.options
    if options.data is not None:
        return data.given(options.data, request.layout)
    return data.made(request.layout, request.files(), data.cache_folder(options.cache_dir), progress.bytes_written)


def _view_bytes(request: Request, dataset: Dataset) -> float:
    """Mean delivered bytes of a sample."""
    probe = np.linspace(0, dataset.samples - 1, min(dataset.samples, 1000)).astype(np.int64)
    return float(dataset.locate(probe, request.workload.view)[3].sum(axis=1).mean())


def _layout_view_bytes(request: Request) -> float:
    """The same from the layout alone; a record of varying length counts as stored."""
    fields = [field for field in request.layout.fields if field.name in request.workload.view]
    if any(-1 in field.shape for field in fields):
        return request.layout.sample_bytes
    return float(sum(np.dtype(field.dtype).itemsize * np.prod(field.shape, dtype=np.int64) for field in fields))


def _job(  # noqa: PLR0913 - a job is what it is
    request: Request, cut: Cut, nodes: int, folder: Path, digest: str, view_bytes: float, tiers: Sequence[Path]
) -> Job:
    options = request.options
    allocated = launchers.allocation_nodes(os.environ)
    if allocated is not None and nodes > allocated:
        raise UsageError(
            f"--nodes {nodes}, but the scheduler's allocation has {allocated}. Ask for at most {allocated}."
        )
    tiny = TINY_TRIALS if options.tiny else TRIALS
    return Job(
        workload=request.workload.name,
        readers=options.readers,
        nodes=nodes,
        ranks_per_node=options.ranks_per_node,
        virtual=nodes > 1 and allocated is None,
        dataset=str(folder.resolve()),
        dataset_digest=digest,
        code_digest=code_digest(),
        view=request.workload.view,
        batch=cut.batch,
        epochs=cut.epochs,
        trials=tiny if options.trials is None else options.trials,
        warmup_trials=WARMUP_TRIALS if options.warmup_trials is None else options.warmup_trials,
        seed=secrets.randbits(32) if options.seed is None else options.seed,
        cache=options.cache,
        sync=options.sync,
        step_seconds=request.sample_seconds * cut.batch,
        threads=options.threads,
        # varying samples make batches larger than the mean: a half more is room for that
        staging_bytes=options.staging or max(STAGING_BYTES, int(3 * view_bytes * cut.batch)),
        verify=options.verify,
        tier_folders=tuple(str(folder) for folder in tiers[:nodes]),
    )


def _launch(request: Request, job: Job, work: Path) -> Launch:
    """Choose the launcher and build its command. UsageError or EnvironmentFailure where there is none."""
    site = launchers.detect_site(os.environ)
    command = python_command("dlio_bench.harness.run.rank", str(work))
    asked = launchers.Job(job.nodes, job.ranks_per_node, command, job.virtual)
    name = launchers.choose(os.environ, asked, site, request.options.launcher)
    env = launchers.launch_env(asked, site, os.environ)
    argv = launchers.LAUNCHERS[name](replace(asked, env=env), site)
    return Launch(name, () if name == "local" else argv, env)


def _measure(  # noqa: PLR0913 - what a measurement is made of
    request: Request, job: Job, dataset: Dataset, notes: Sequence[str], folder: Path, progress: Progress
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Run one job to its end; a draft result and its step times for each reader."""
    work = folder / "work"
    work.mkdir()
    job.save(work)
    plan = _launch(request, job, work.resolve())
    launched, ready = time.monotonic(), 0.0

    def heard(event: dict[str, Any]) -> None:
        nonlocal ready
        if event["event"] == "ready":
            ready = time.monotonic() - launched
        progress.event(event)

    if plan.launcher == "local":
        rank.measure(job, work, Solo(), heard)
    else:
        launch(plan.argv, {**os.environ, **plan.env}, work, heard)
    measured = _read_json(work / rank.MEASURED)
    setting = Setting(
        request.workload,
        dataset,
        request.options.data is None,
        request.step_time,
        tuple(notes),
        plan.launcher,
        plan.argv,
        ready,
        _node_memory(request.options, job),
    )
    for reader in job.readers:
        with np.load(work / f"{reader}.npz") as arrays:
            steps = dict(arrays)
        steps["epoch"] = steps["epoch"][0, 0]  # alike in every trial and rank
        yield draft(reader, job, setting, measured, _read_json(work / f"{reader}.json"), steps), steps
    shutil.rmtree(work)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise EnvironmentFailure(
            f"The ranks ended well, but {path.name} did not come back to {path.parent}. The output folder must be on a "
            "file system that all nodes share: choose one with --out."
        ) from None
    return content


def _node_memory(options: Options, job: Job) -> int:
    """Memory budget of a node: what was asked for, else the machine's, shared by its virtual nodes."""
    own = memory_bytes()
    return options.memory_per_node or (own // job.nodes if job.virtual else own)


@contextmanager
def _output_folder(options: Options) -> Iterator[Path]:
    """A new folder; taken away again when nothing was measured, unless it holds a launcher's log to look at."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = options.out or Path("dlio-results") / f"{stamp}-{options.workload}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} exists and is not empty. Results are never mixed: choose a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        log, defect = folder / "work" / "launcher.log", folder / "work" / "defect.txt"
        if not defect.exists() and not (log.exists() and log.stat().st_size):
            shutil.rmtree(folder / "work", ignore_errors=True)
            if not any(folder.iterdir()):
                folder.rmdir()
        raise


@contextmanager
def _tier_folders(options: Options) -> Iterator[list[Path]]:
    """A local-tier folder for each virtual node, in the machine's temporary folder, gone when the run ends."""
    with TemporaryDirectory(prefix="dlio-bench-tiers-") as base:
        folders = [Path(base) / f"node{number:03d}" for number in range(max(options.nodes))]
        for folder in folders:
            folder.mkdir()
        yield folders


def require_memory(options: Options, job: Job) -> None:
    """UsageError when the staging buffers of a node's ranks do not fit its memory budget."""
    budget, asked = _node_memory(options, job), job.staging_bytes * job.ranks_per_node
    if asked > budget:
        raise UsageError(
            f"{job.ranks_per_node} ranks with a staging buffer of {format_bytes(job.staging_bytes)} each need "
            f"{format_bytes(asked)}, but a node has {format_bytes(budget)}. Ask for a smaller --staging or fewer ranks."
        )
