"""`dlio-bench run`: makes data ready, launches ranks for every node count, writes results and the report."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from msgspec import structs

from dlio_bench.errors import BenchError
from dlio_bench.harness.cluster.start import Launch, require_hosts
from dlio_bench.harness.ground.folders import output_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.run.asked import data
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.asked.jobs import held_bytes, jobs, require_machine
from dlio_bench.harness.run.asked.options import Options
from dlio_bench.harness.run.asked.request import Request, look_up
from dlio_bench.harness.run.asked.sizing import TrialSize
from dlio_bench.harness.run.asked.training import require_labelled
from dlio_bench.harness.run.judging import judged, require_covered, with_limits
from dlio_bench.harness.run.look import first_look, sized
from dlio_bench.harness.run.measurement import measure, plan_launch
from dlio_bench.harness.run.node_folders import local_tiers
from dlio_bench.harness.run.placing import placed
from dlio_bench.harness.run.predicted.forecast import forecast, require_possible
from dlio_bench.harness.run.told.building import Setting
from dlio_bench.harness.run.told.dry import describe
from dlio_bench.harness.run.told.foresight import expected_seconds
from dlio_bench.reports import html, judge, judgement_text, repetition, result, storage, text
from dlio_bench.reports.judgement import Judgement
from dlio_bench.reports.marks import INTERRUPTED
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.typed import to_json
from dlio_bench.reports.types import Draft, Result

Finished = tuple[Result, Steps]


def run(options: Options, earlier: Sequence[Result] = ()) -> int:
    """Run the command. Returns the exit status of the gravest result. BenchError if there is none.

    earlier: results that this run repeats.
    """
    options, asked = with_limits(options)
    request = look_up(options)
    if asked is not None:
        require_covered(request, asked)
    require_machine(options)
    progress = Progress()
    data.await_given(options, progress)
    source = data.source(request, _held(request))
    yardstick = None if options.storage is None else storage.load(options.storage)
    size = request.trial_size(source.samples)
    validation, notes = request.passes(source.validation_samples, size)
    size = replace(size, notes=(*size.notes, *notes))
    planned = jobs(request, size, source.folder, validation)
    launches = [plan_launch(job, Path("JOB"), options.launcher) for job in planned]  # refused before anything is made
    require_possible(options, source.folder)
    if options.dry_run:
        _print_plans(request, source, size, planned, launches)
        return 0
    for start in launches:
        require_hosts(start)

    finished: list[Finished] = []
    with output_folder(options.out, options.workload) as folder, local_tiers(options) as tiers:
        dataset = data.ready(source, request.layout, progress)
        require_labelled(options, dataset)
        if request.looks_first:
            looks = [first_look(template, request, dataset, tiers, folder, progress) for template in planned]
            planned, size = sized(planned, size, request.minimum, [seconds for look in looks for seconds in look])
        predicted = forecast(options, planned, dataset, folder, progress) if options.predict else None
        failure: BaseException | None = None
        try:
            for template in planned:
                with placed(template, dataset, tiers) as job:
                    setting = Setting(request, dataset, size.notes, yardstick)
                    progress.begin(
                        job.heading,
                        trials=job.all_trials,
                        epochs=job.all_epochs,
                        epoch_seconds=size.trial_steps / size.epochs * job.step_seconds,
                    )
                    for measured, steps in measure(job, setting, folder, options.launcher, progress):
                        drafted = measured if predicted is None else predicted.beside(measured, job)
                        finished.append(_saved(repetition.noted(drafted, earlier), steps, folder))
        except (BenchError, KeyboardInterrupt) as error:
            if not finished:
                raise
            failure = error
            finished = [
                _saved(structs.replace(complete, marks=[*complete.marks, INTERRUPTED]), steps, folder)
                for complete, steps in finished
            ]
        judgement = None if asked is None else judged(finished, asked, folder)
        progress.show("writing the report")
        html.write(finished, folder / "report.html", judgement)
        progress.done()
        _print([complete for complete, _ in finished], folder, judgement, options)
        if failure is not None:
            raise failure
    status = judge.exit_status([complete for complete, _ in finished])
    return status if judgement is None else judge.gravest([status, judgement.status])


def _saved(drafted: Draft, steps: Steps, folder: Path) -> Finished:
    """Complete a draft, and save it in its own folder below `folder`."""
    complete, plan = result.complete(drafted, steps), drafted.plan
    result.save(complete, steps, folder / f"{complete.policy.alias}-{plan.nodes}x{plan.ranks_per_node}")
    return complete, steps


def _held(request: Request) -> tuple[int, ...]:
    """The most bytes that staging buffers and tiers of the run hold (see Request.files)."""
    if request.options.data is not None or request.options.tiny or not request.minimum.seconds:
        return ()
    return held_bytes(jobs(request, request.largest()[1], Path(), None))


def _print_plans(
    request: Request, source: data.Source, size: TrialSize, planned: Sequence[Job], launches: Sequence[Launch]
) -> None:
    if request.options.json:
        seconds = [{"seconds": expected_seconds(request, source, job)} for job in planned]
        plans = zip(planned, launches, seconds, strict=True)
        print(json.dumps([asdict(job) | asdict(plan) | foreseen for job, plan, foreseen in plans]))
        return
    for job, plan in zip(planned, launches, strict=True):
        print(describe(request, source, size, job, plan.argv))


def _print(results: Sequence[Result], folder: Path, judgement: Judgement | None, options: Options) -> None:
    if options.json:
        print(json.dumps([to_json(complete) for complete in results]))
    else:
        if judgement is not None:
            print(judgement_text.render(judgement))
        print(f"{text.render(results, verbose=options.verbose)}{repetition.told(results)}")
        print(f"  results  {folder}\n  report   {folder / 'report.html'}")
