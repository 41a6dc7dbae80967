"""`dlio-bench run`: makes data ready, launches ranks for every node count, writes results and the report."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, UsageError
from dlio_bench.harness.cluster.start import Launch, require_reachable
from dlio_bench.harness.commands.checkpoints import limited
from dlio_bench.harness.commands.run import resuming
from dlio_bench.harness.commands.run.asked import data
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.jobs import held_bytes, jobs, require_machine
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.refusals import require_written
from dlio_bench.harness.commands.run.asked.request import Request, look_up
from dlio_bench.harness.commands.run.asked.sizing import TrialSize
from dlio_bench.harness.commands.run.asked.tracing import SPANS
from dlio_bench.harness.commands.run.asked.training import require_labelled
from dlio_bench.harness.commands.run.measurement import extend, first_look, local_tiers, measure, place_job, plan_launch
from dlio_bench.harness.commands.run.resuming import Finished
from dlio_bench.harness.commands.run.told.building import RunSetting
from dlio_bench.harness.commands.run.told.dry import describe
from dlio_bench.harness.commands.run.told.foresight import expected_seconds, least_seconds
from dlio_bench.harness.ground.folders import output_folder
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.live.journal import Journal, open_journal
from dlio_bench.harness.live.status import DONE
from dlio_bench.harness.storage.direct import alignment_of
from dlio_bench.reports import kinds, storage
from dlio_bench.reports.comparing import repetition
from dlio_bench.reports.document import result
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.document.types import Draft, Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.judging import text as judgement_text
from dlio_bench.reports.judging.judgement import NAME, Judgement, as_json
from dlio_bench.reports.judging.limits import Limits
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.traces import timeline


class RunTask(Struct, frozen=True):
    """What is to be measured, and how. earlier: results that the run repeats."""

    request: Request
    source: data.Source
    size: TrialSize
    planned: Sequence[Job]
    earlier: Sequence[Result]
    yardstick: storage.Document | None
    progress: Progress
    journal: Journal


def run(options: Options, earlier: Sequence[Result] = ()) -> int:
    """Run the command. Returns the exit status of the gravest result. BenchError if there is none.

    earlier: results that this run repeats.
    """
    options, asked = with_limits(data.with_local_tables(options))
    options.outcome.require_files()
    progress = Progress()
    record = resuming.record_of(options, earlier)
    state = None if options.dry_run else resuming.decided_state(options, record)
    if not options.dry_run and (pairs := resuming.finished_results(options, record)):
        print(f"This run was finished before in {options.out}: nothing is measured.", file=sys.stderr)
        folder = options.out or Path()
        judgement, status = _judge_and_report(pairs, asked, folder, progress, options)
        _print(pairs, folder, judgement, options)
        return status
    if state is not None:
        options = replace(options, seed=state.seed)
    request = look_up(options)
    if asked is not None:
        require_covered(request, asked)
    require_machine(options)
    data.await_generation(options, progress)
    source = data.source(request, _most_held_bytes(request))
    yardstick = None if options.storage is None else storage.load(options.storage)
    size = request.trial_size(source.samples)
    if not request.looks_first:  # after which a trial may have more steps
        require_written(options, size.trial_steps)
    validation, notes = request.passes(source.validation_samples, size)
    size = replace(size, notes=(*size.notes, *notes))
    planned = jobs(request, size, source.folder, validation)
    launches = [plan_launch(job) for job in planned]  # refused before anything is made
    if options.predict:
        from dlio_bench.harness.commands.run.predicted.prediction import require_possible

        require_possible(options, source.folder)
    if options.io == DIRECT:
        data.require_direct(source)
    if options.dry_run:
        _print_plans(request, source, size, planned, launches)
        return 0
    for start in launches:
        require_reachable(start.hosts)

    with (
        output_folder(options.out, options.workload, goes_on=True) as folder,
        open_journal(folder) as journal,
        local_tiers(options) as tiers,
    ):
        progress.heard = journal.preparing
        place = resuming.Folder(folder, record, state or resuming.RunState(seed=planned[0].seed))
        work = RunTask(request, source, size, planned, earlier, yardstick, progress, journal)
        pairs, failure = _measure_all(work, place, tiers)
        progress.show("writing the report")
        judgement, status = _judge_and_report(pairs, asked, folder, progress, options)
        if failure is not None:
            _print(pairs, folder, judgement, options)
            raise failure
        place.finish([complete for complete, _ in pairs])
        journal.end(DONE, status)
    _print(pairs, folder, judgement, options)  # where nobody reads it, the run is over all the same
    return status


def _measure_all(
    work: RunTask, place: resuming.Folder, tiers: tuple[str, ...]
) -> tuple[list[Finished], BenchError | None]:
    """The results of all node counts; of those that are finished, with the reason, where the run was stopped.

    BenchError if none is.
    """
    request, progress = work.request, work.progress
    dataset = data.ready(work.source, request.layout, progress)
    if request.options.io == DIRECT:
        alignment_of(dataset)
    place.require_dataset(dataset.digest)
    require_labelled(request.options, dataset)
    sharded = data.make_shards(work.planned[0], dataset, progress)
    planned, size = _size_jobs(work, place, dataset, tiers)
    finished = {job.nodes: place.finished_results(job) for job in planned}
    left = [job for job in planned if not finished[job.nodes]]
    resumed = [job.nodes for job in planned if finished[job.nodes]]
    if resumed:
        counts = ", ".join(map(str, resumed))
        print(f"Going on in {place.path}: --nodes {counts} was finished before.", file=sys.stderr)
    predicted = None
    if request.options.predict and left:
        from dlio_bench.harness.commands.run.predicted.prediction import forecast

        predicted = forecast(request.options, planned, dataset, place.path, progress)
    setting = RunSetting(request, dataset, (*size.notes, *sharded), work.yardstick)
    try:
        for template in left:
            least = least_seconds(request, work.source, template)
            with place.measuring(template, least), place_job(template, dataset, tiers) as job:
                work.journal.begin(
                    tuple(job.readers),
                    planned.index(template),
                    len(planned),
                    job.warmup_trials,
                    nodes=job.nodes,
                    ranks=job.ranks,
                    trials=job.all_trials,
                    epochs=job.epochs,
                )
                progress.begin(
                    job.heading,
                    trials=job.all_trials,
                    epochs=job.all_epochs,
                    epoch_seconds=size.trial_steps / size.epochs * job.step_seconds,
                )
                for measured, steps in measure(job, setting, place.path, progress, place.result_folder, work.journal):
                    drafted = measured if predicted is None else predicted.add_prediction(measured, job)
                    finished[job.nodes].append(
                        _save_result(repetition.with_earlier(drafted, work.earlier), steps, place)
                    )
    except (BenchError, KeyboardInterrupt) as error:
        failure = resuming.stopped_error(error, _flat(finished), place.path)
        if not _flat(finished):
            raise failure from error
        return [_save_result(resuming.with_mark(known), steps, place) for known, steps in _flat(finished)], failure
    for nodes in resumed:
        finished[nodes] = [_save_result(resuming.without_mark(known), steps, place) for known, steps in finished[nodes]]
    return _flat(finished), None


def _size_jobs(
    work: RunTask, place: resuming.Folder, dataset: Dataset, tiers: tuple[str, ...]
) -> tuple[Sequence[Job], TrialSize]:
    """The jobs and the size of their trials, after a first look if they need one. A run that goes on keeps them."""
    if (size := place.state.size) is not None:
        return [replace(job, epochs=size.epochs) for job in work.planned], size
    if not work.request.looks_first:
        return work.planned, work.size
    looks = [first_look(job, work.request, dataset, tiers, place.path, work.progress) for job in work.planned]
    planned, size = extend(work.planned, work.size, work.request.minimum, [each for look in looks for each in look])
    require_written(work.request.options, size.trial_steps)
    place.note(size=size)
    return planned, size


def _flat(finished: Mapping[int, Sequence[Finished]]) -> list[Finished]:
    return [pair for pairs in finished.values() for pair in pairs]


def _judge_and_report(
    pairs: Sequence[Finished], asked: Limits | None, folder: Path, progress: Progress, options: Options
) -> tuple[Judgement | None, int]:
    """Judge, and write the page and what a CI job takes; the exit status too."""
    from dlio_bench.reports.run import html

    judgement = None if asked is None else judge_results(pairs, asked, folder)
    html.write(pairs, folder / "report.html", judgement)
    progress.clear()
    results = [complete for complete, _ in pairs]
    options.outcome.write(results, judgement)
    status = judge.exit_status(results)
    return judgement, status if judgement is None else judge.gravest([status, options.outcome.status(judgement)])


def _save_result(drafted: Draft, steps: Steps, place: resuming.Folder) -> Finished:
    """Complete a draft, and save it in its own folder below that of the run."""
    complete, plan = result.complete(drafted, steps), drafted.plan
    result.save(complete, steps, place.result_folder(complete.policy.alias, plan))
    return complete, steps


def _most_held_bytes(request: Request) -> tuple[int, ...]:
    """The most bytes that staging buffers and tiers of the run hold (see Request.files)."""
    if request.options.data is not None or request.options.tiny or not request.minimum.seconds:
        return ()
    return held_bytes(jobs(request, request.largest()[1], Path(), None))


def _print_plans(
    request: Request, source: data.Source, size: TrialSize, planned: Sequence[Job], launches: Sequence[Launch]
) -> None:
    if request.options.json:
        seconds = [{"seconds": expected_seconds(request, source, job)} for job in planned]
        asked, started = (msgspec.to_builtins(each, enc_hook=str) for each in (planned, launches))
        plans = zip(asked, started, seconds, strict=True)
        print(json.dumps([job.pop("options") | job | launch | foreseen for job, launch, foreseen in plans]))
        return
    for job, plan in zip(planned, launches, strict=True):
        print(describe(request, source, size, job, plan.argv))


def _print(pairs: Sequence[Finished], folder: Path, judgement: Judgement | None, options: Options) -> None:
    from dlio_bench.reports.run import text

    results = [complete for complete, _ in pairs]
    if options.json:
        print(json.dumps([to_json(complete) for complete in results]))
    else:
        if judgement is not None:
            print(judgement_text.render(judgement))
        print(f"{text.render(results, verbose=options.verbose)}{repetition.describe_differences(results)}")
        print(f"  results  {folder}\n  report   {folder / 'report.html'}")
        if SPANS in options.trace:
            print(f"  spans    {timeline.spans_in(folder)} recorded, for: dlio-bench trace {shlex.quote(str(folder))}")


def with_limits(options: Options) -> tuple[Options, Limits | None]:
    """The limits that --limits names, and the options with the trials that they ask for, unless the user gave some."""
    if options.limits is None:
        if options.require is not None:
            raise UsageError(f"--require {options.require} needs limits to judge by. Name their file with --limits.")
        return options, None
    asked = limited.load(options.limits)
    return replace(options, trials=options.trials or asked.settings.trials), asked


def require_covered(request: Request, asked: Limits) -> None:
    """UsageError where no limit is for what the run will measure, or the run has fewer trials than the limits ask."""
    options = request.options
    if options.trials is not None and options.trials < asked.settings.trials:
        raise UsageError(
            f"--trials {options.trials}: '{options.limits}' asks for {asked.settings.trials}. Give --trials "
            f"{asked.settings.trials}, or leave it out."
        )
    per_node = options.ranks_per_node * len(request.models)
    scales = [f"{nodes}x{per_node}" for nodes in options.nodes]
    rows = [(name, row.name) for name, row in request.readers.items()]
    if not any(
        limit.covers(options.workload, names, scale) for limit in asked.limits for names in rows for scale in scales
    ):
        raise UsageError(
            f"'{options.limits}' has no limit for {options.workload} with {', '.join(request.readers)} at "
            f"{', '.join(scales)} (nodes x ranks of a node). Add a table, such as "
            f'[{options.workload}.{next(iter(request.readers))}."{scales[0]}"], or run without --limits.'
        )


def judge_results(finished: Sequence[tuple[Result, Steps]], asked: Limits, folder: Path) -> Judgement:
    """Judge what was measured, by the limits that are for it, and write judgement.json into the folder of the run."""
    judgement = judge.judge(kinds.all_measured(finished), asked, partial=True)
    write_whole(folder / NAME, as_json(judgement).encode())
    return judgement
