"""`dlio-bench run`: data made ready, ranks launched for every node count, results written, the report rendered."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.start import Launch
from dlio_bench.harness.run import data
from dlio_bench.harness.run.draft import Setting
from dlio_bench.harness.run.dry import describe
from dlio_bench.harness.run.folders import local_tiers, output_folder
from dlio_bench.harness.run.forecast import forecast, require_possible
from dlio_bench.harness.run.inference import require_labelled
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.run.jobs import jobs, node_memory
from dlio_bench.harness.run.measurement import measure, plan_launch
from dlio_bench.harness.run.options import Options
from dlio_bench.harness.run.progress import Progress
from dlio_bench.harness.run.request import Request, look_up
from dlio_bench.harness.run.sizing import Cut
from dlio_bench.harness.run.training import require_trainable
from dlio_bench.harness.storage.pfs.emulation import mounted
from dlio_bench.reports import html, judge, result, storage, text


def run(options: Options) -> int:
    """The whole command. Returns the status of the gravest result; raises BenchError for what prevents a result."""
    request = look_up(options)
    progress = Progress()
    data.await_given(options, progress)
    source = data.source(request)
    yardstick = None if options.storage is None else storage.load(options.storage)
    cut = request.cut(source.samples)
    validation, notes = request.passes(source.validation_samples, cut.epochs)
    cut = replace(cut, notes=(*cut.notes, *notes))
    planned = jobs(request, cut, source.folder, validation)
    launches = [plan_launch(job, Path("JOB"), options.launcher) for job in planned]  # refused before anything is made
    require_possible(options, source.folder)
    if options.dry_run:
        _print_plans(request, source, cut, planned, launches)
        return 0

    finished = []
    with output_folder(options.out, options.workload) as folder, local_tiers(options) as tiers:
        dataset = data.ready(source, request.layout, progress)
        require_trainable(request.training, dataset)
        require_labelled(request.inference, dataset)
        predicted = forecast(options, planned, dataset, folder, progress) if options.predict else None
        for template in planned:
            with _mounted(options, dataset, template.nodes) as (mounts, board):
                job = replace(
                    template,
                    dataset_digest=dataset.digest,
                    tier_folders=tiers[: template.nodes],
                    mounts=mounts,
                    board=board,
                )
                setting = Setting(request, dataset, cut.notes, node_memory(options, job), yardstick)
                progress.begin(job)
                for drafted, steps in measure(job, setting, folder, options.launcher, progress):
                    if predicted is not None:
                        drafted["prediction"] = predicted.of(drafted["policy"]["alias"], job)
                    complete = result.complete(drafted, steps)
                    result.save(complete, steps, folder / _name(job, complete))
                    finished.append((complete, steps))
        progress.show("writing the report")
        html.write(finished, folder / "report.html")
    progress.done()
    _print([complete for complete, _ in finished], folder, as_json=options.json)
    return judge.exit_status([complete for complete, _ in finished])


@contextmanager
def _mounted(options: Options, dataset: Dataset, nodes: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """The mounts of an emulated file system over the dataset, one a node, and their counters; nothing without one."""
    if options.emulate_pfs is None:
        yield (), ""
        return
    with mounted(options.emulate_pfs, dataset.folder, nodes) as emulation:
        yield tuple(map(str, emulation.mounts)), str(emulation.board)


def _print_plans(
    request: Request, source: data.Source, cut: Cut, planned: Sequence[Job], launches: Sequence[Launch]
) -> None:
    if request.options.json:
        print(json.dumps([asdict(job) | asdict(plan) for job, plan in zip(planned, launches, strict=True)]))
        return
    for job, plan in zip(planned, launches, strict=True):
        print(describe(request, source, cut, job, node_memory(request.options, job), plan.argv))


def _name(job: Job, complete: dict[str, Any]) -> str:
    return f"{complete['policy']['alias']}-{job.nodes}x{job.ranks_per_node}"


def _print(results: Sequence[dict[str, Any]], folder: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results))
    else:
        print(f"{text.render(results)}\n\n  results  {folder}\n  report   {folder / 'report.html'}")
