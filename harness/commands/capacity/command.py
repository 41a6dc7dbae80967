"""`dlio-bench capacity`: probes rising scales with `dlio-bench run`, confirms the largest that holds, tells."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

import dlio_bench
from dlio_bench import documents
from dlio_bench.errors import ERRORS, BenchError, EnvironmentFailure, UsageError, unknown
from dlio_bench.harness.cluster.launchers import LAUNCHERS
from dlio_bench.harness.commands.capacity.options import Options
from dlio_bench.harness.commands.run.asked import data
from dlio_bench.harness.commands.run.asked.options import Options as RunOptions
from dlio_bench.harness.commands.run.asked.request import Request, look_up
from dlio_bench.harness.commands.run.told.foresight import making_seconds, run_seconds
from dlio_bench.harness.ground import unfinished
from dlio_bench.harness.ground.folders import UNFINISHED, output_folder
from dlio_bench.harness.ground.options import BUFFERED
from dlio_bench.harness.ground.parts import PartRunner, ending
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.ground.subcommands import as_words, going_on
from dlio_bench.harness.machine.memory import memory
from dlio_bench.harness.storage.pfs.spec import parse_spec
from dlio_bench.reports import capacity as document
from dlio_bench.reports.capacity import Capacity, Probe, Runs
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.result import load
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging import judge
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes, format_percent, format_seconds
from dlio_bench.wrapping import wrap

RANKS_PER_CORE = 4  # emulated compute waits, and leaves the core to others
# Steps of a run, if these take no longer. As an epoch begins, a reader fills its buffer, of 16 batches at most: that is
# a twentieth of so many steps, and a quarter of the 64 that other runs have.
RUN_STEPS, RUN_SECONDS = 320, 20.0
# Options that are those of `run`
AS_GIVEN = (
    "workload", "variant", "data", "max_data", "cache_dir", "tiny", "batch", "steps", "compute", "launcher", "dry_run",
)  # fmt: skip
OF_MEMORY = 0.5  # of what is available: a dataset of this size stays in the page cache for the null run


class Scale(Struct, frozen=True):
    """Emulated accelerators: one rank each, equally many on every node."""

    nodes: int
    ranks_per_node: int

    @property
    def accelerators(self) -> int:
        """All of them."""
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        """'2x4', as in the names of results."""
        return f"{self.nodes}x{self.ranks_per_node}"


def scales(nodes: int, ranks_per_node: int) -> list[Scale]:
    """Every scale that is tried, in rising order: first more ranks on one node, then more nodes of as many ranks."""
    one_node = [Scale(1, ranks) for ranks in range(1, ranks_per_node + 1)]
    return one_node + [Scale(count, ranks_per_node) for count in range(2, nodes + 1)]


def largest(tried: Sequence[Scale], holds: Callable[[Scale], bool]) -> int:
    """How many of the rising scales hold: 0 if the first fails, all if the last holds.

    The positions double until a scale fails, then the gap is halved. `holds` is asked once for a scale at most, and
    the scale behind the answer has failed, unless all hold. Larger scales than a failing one are taken to fail.
    """
    good, bad = 0, 1  # positions from 1: the first `good` scales hold, scale number `bad` is asked next
    while bad <= len(tried) and holds(tried[bad - 1]):
        good, bad = bad, min(2 * bad, len(tried)) if bad < len(tried) else len(tried) + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(tried[middle - 1]) else (good, middle)
    return good


class InvalidProbeError(Exception):
    """A probe cannot be trusted."""


class SearchSetting(Struct, frozen=True):
    """What all probes share.

    probe_seconds, confirming_seconds: of runs at the largest scale, with readers that keep up; a probe with its null
    run.
    """

    options: Options
    dataset: Path
    stored_bytes: int
    batch: int
    steps: int
    step_seconds: float
    probe_seconds: float
    confirming_seconds: float

    def command(self, scale: Scale, *, null: bool, trials: int, out: Path) -> list[str]:
        """The words of `run` for a probe. null: with the data in the page cache, and nothing emulated below it."""
        options = self.options
        given = {
            "nodes": scale.nodes, "ranks_per_node": scale.ranks_per_node, "reader": options.reader,
            "data": self.dataset, "batch": self.batch, "steps": self.steps, "compute": options.compute,
            "cache": "warm" if null else "cold-epochs", "trials": trials, "warmup_trials": int(trials > 1),
            "out": out, "json": True, "variant": options.variant, "launcher": options.launcher,
            "threads": options.threads, "staging": options.staging and f"{options.staging}B",
            **({} if null else {"io": options.io, "emulate_pfs": options.emulate_pfs}),
            "tiny": options.tiny, "no_verify": null or trials == 1,
        }  # fmt: skip
        return ["run", options.workload, *as_words(given)]

    def seconds(self, trials: int) -> float:
        """About how long a probe and its null run take where the storage gives half of what is asked."""
        return 2 * (self.confirming_seconds if trials > 1 else self.probe_seconds)


def capacity(options: Options) -> int:
    """Run the command: 0, 1 below --at-least, 3 if a probe is INVALID. UsageError, EnvironmentFailure."""
    ranks = options.ranks_per_node or RANKS_PER_CORE * len(os.sched_getaffinity(0))
    tried = scales(options.nodes, ranks)
    if options.at_least is not None and options.at_least > tried[-1].accelerators:
        raise UsageError(
            f"--at-least {options.at_least}: only up to {tried[-1].accelerators} accelerators would be tried. Ask for "
            "more with --ranks-per-node or --nodes."
        )
    if options.launcher is not None and options.launcher not in LAUNCHERS:
        raise unknown("launcher", options.launcher, [*LAUNCHERS])
    request = look_up(_largest_run(options, tried[-1]))
    if request.step_time is None or not request.step_seconds(options.batch or request.workload.batch):
        raise UsageError(f"--compute {options.compute}: AU needs emulated compute, such as emulate:50ms.")
    progress = Progress()
    data.await_generation(request.options, progress)
    if options.steps is None and not options.tiny:
        request = replace(request, options=replace(request.options, steps=_steps(request)))
    source = data.source(request)
    setting = _setting(options, request, source)
    if options.dry_run:
        foreseen = _expected_seconds(setting, tried, request, source)
        plan = {
            "scales": [asdict(scale) for scale in tried],
            "data": str(setting.dataset),
            "batch": setting.batch,
            "stored_bytes": setting.stored_bytes,
            "steps": setting.steps,
            "step_seconds": setting.step_seconds,
            "seconds": foreseen,
        }
        print(json.dumps(plan) if options.json else _describe_plan(setting, tried, source, foreseen))
        return 0
    record = unfinished.new_record(asdict(options) | {"out": None, "json": False})  # all but where it goes
    if (answered := _finished_answer(options.out, record)) is not None:
        print(f"This search was finished before in {options.out}: nothing is measured.", file=sys.stderr)
        return _print_answer(answered, options.out, options)
    unfinished.load_stopped(options.out, record)
    with output_folder(options.out, f"{options.workload}-capacity", goes_on=True) as folder:
        unfinished.save(record, folder)
        data.ready(source, request.layout, progress)
        try:
            answer = _search(setting, tried, PartRunner(folder, 0, going_on(folder)), progress)
        except InvalidProbeError as reason:
            (folder / UNFINISHED).unlink()
            progress.clear()
            text = "\n".join(wrap(str(reason), f"{'INVALID':<11}"))
            print(json.dumps({"invalid": str(reason)}) if options.json else text)
            return judge.INVALID
        write_whole(folder / document.NAME, (json.dumps(to_json(answer), indent=1) + "\n").encode())
        unfinished.finish(folder)
    return _print_answer(answer, folder, options)


def _print_answer(answer: Capacity, folder: Path | None, options: Options) -> int:
    """Print; the exit status."""
    print(json.dumps(to_json(answer)) if options.json else f"{document.view(answer).text()}\n  results  {folder}")
    return judge.PASS if answer.enough else judge.LIMIT_MISSED


def _finished_answer(out: Path | None, record: unfinished.Record) -> Capacity | None:
    """The answer of this very search, if --out holds it: batch scripts give finished commands again."""
    if out is None or unfinished.load_finished(out, record) is None:
        return None
    try:
        return convert(documents.load_json(documents.read_document(out / document.NAME)), Capacity)
    except (OSError, ValueError):  # damaged, or gone, since
        return None


def _largest_run(options: Options, scale: Scale) -> RunOptions:
    """The run at the largest scale, which decides the data."""
    return RunOptions(
        **{name: getattr(options, name) for name in AS_GIVEN},
        nodes=(scale.nodes,),
        ranks_per_node=scale.ranks_per_node,
        readers=(options.reader,),
        cache="cold-epochs",
        io=options.io or BUFFERED,
        emulate_pfs=parse_spec(options.emulate_pfs) if options.emulate_pfs else None,
    )


def _steps(request: Request) -> int:
    """Steps of a run where the user gives none."""
    batch = request.trial_size(data.source(request).samples).batch
    in_time = int(RUN_SECONDS / request.step_seconds(batch))
    return max(request.needed_steps(batch), min(RUN_STEPS, in_time))


def _setting(options: Options, request: Request, source: data.Source) -> SearchSetting:
    size = request.trial_size(source.samples)
    available = OF_MEMORY * memory().available
    if source.stored_bytes > available:
        raise UsageError(
            f"The null runs keep the dataset in memory, but its {format_bytes(source.stored_bytes)} are more than half "
            f"of what is available ({format_bytes(available)}). Give --max-data {int(available / 1e6)}MB or less, or a "
            "smaller dataset."
        )
    steps = request.options.steps or request.needed_steps(size.batch)
    step_seconds = request.step_seconds(size.batch)
    asked = replace(request.options, steps=steps, batch=size.batch)
    probe = replace(asked, trials=1, warmup_trials=0, verify=False)
    several = options.trials > 1
    seconds = [
        run_seconds(replace(request, options=run), source)
        for run in (
            probe,
            replace(probe, cache="warm", emulate_pfs=None),
            replace(asked, trials=options.trials, warmup_trials=int(several), verify=several),
        )
    ]
    return SearchSetting(
        options, source.folder, source.stored_bytes, size.batch, steps, step_seconds, sum(seconds[:2]), seconds[2]
    )


def _expected_seconds(
    setting: SearchSetting, tried: Sequence[Scale], request: Request, source: data.Source
) -> dict[str, float]:
    """About how many seconds each part takes at most: data, probes, confirmation."""
    making = 0.0
    if not source.exists and source.files is not None:
        making = making_seconds(request.layout, source.files, source.folder)
    return {
        "making the data": making,
        "probes": _most_probes(tried) * setting.probe_seconds,
        "confirmation": setting.confirming_seconds,
    }


def _most_probes(tried: Sequence[Scale]) -> int:
    """Scales that are probed at most."""
    return min(len(tried), 2 * max(1, len(tried).bit_length()) - 1)


def _describe_plan(
    setting: SearchSetting, tried: Sequence[Scale], source: data.Source, foreseen: Mapping[str, float]
) -> str:
    """What --dry-run prints."""
    made = "" if source.exists else ", made first"
    runs = f"{plural(setting.options.trials, 'run')} to confirm"
    parts = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in foreseen.items() if seconds)
    return "\n".join([
        f"{setting.options.workload}: from {tried[0]} to {tried[-1]} nodes x ranks, AU at least "
        f"{format_percent(setting.options.au)}",
        f"  each run  {setting.steps} steps of {format_seconds(setting.step_seconds)}, batch {setting.batch}, reader "
        f"{setting.options.reader}",
        f"  data      {format_bytes(setting.stored_bytes)} in {setting.dataset}{made}",
        f"  time      about {format_seconds(sum(foreseen.values()))} at most: {parts}",
        f"  runs      at most {plural(_most_probes(tried), 'scale')}, each with a null run, then {runs}",
        f"  command   dlio-bench {shlex.join(setting.command(tried[0], null=False, trials=1, out=Path('OUT')))}",
    ])  # fmt: skip


def _search(setting: SearchSetting, tried: Sequence[Scale], work: PartRunner, progress: Progress) -> Capacity:
    """Grow and bisect with one run each; then confirm, one scale down each time that it fails."""
    options, folder, probes = setting.options, work.folder, dict[tuple[Scale, bool], Probe]()
    marks = dict[tuple[Scale, bool], list[str]]()

    def probe(scale: Scale, *, confirmed: bool) -> Probe:
        if (scale, confirmed) not in probes:
            trials = options.trials if confirmed else 1
            work.require_time(f"the search at {scale} nodes x ranks", setting.seconds(trials))
            name = f"{scale}{'-confirmed' if confirmed else ''}"
            progress.show(f"{options.workload}  {scale} ranks  {'confirming' if confirmed else 'probing'}")
            result, runs = _run_probe(setting.command(scale, null=False, trials=trials, out=folder / name), work)
            marks[scale, confirmed] = result.marks
            null = probes.get((scale, False))
            if null is None:
                progress.show(f"{options.workload}  {scale} ranks  null run")
                _, memory_runs = _run_probe(
                    setting.command(scale, null=True, trials=1, out=folder / f"{name}-null"), work
                )
            probes[scale, confirmed] = Probe(
                nodes=scale.nodes,
                ranks_per_node=scale.ranks_per_node,
                runs=runs,
                null=memory_runs if null is None else null.null,
                confirmed=confirmed,
            )
        return probes[scale, confirmed]

    best = largest(tried, lambda scale: probe(scale, confirmed=False).holds(options.au))
    while best and not probe(tried[best - 1], confirmed=True).holds(options.au):
        best -= 1
    progress.clear()
    limit: document.Limit = document.ASKED
    if best < len(tried):
        failed = [probe for (scale, _), probe in probes.items() if scale == tried[best]]
        client = any(probe.client_limited(options.au) for probe in failed if not probe.holds(options.au))
        limit = document.CLIENT if client else document.STORAGE
    scale = tried[best - 1] if best else Scale(0, 0)
    behind = [marks[scale, True]] if best else list(marks.values())  # the answer
    return Capacity(
        command=["dlio-bench", *sys.argv[1:]],
        version=dlio_bench.__version__,
        workload=options.workload,
        accelerator=options.compute,
        reader=options.reader,
        step_seconds=setting.step_seconds,
        batch=setting.batch,
        steps=setting.steps,
        target=options.au,
        at_least=options.at_least,
        accelerators=scale.accelerators,
        nodes=scale.nodes,
        limited_by=limit,
        marks=list(dict.fromkeys(mark for of_run in behind for mark in of_run)),
        probes=list(probes.values()),
    )


def _run_probe(words: Sequence[str], work: PartRunner) -> tuple[Result, Runs]:
    """Run `dlio-bench` with these words; its result. An INVALID result counts only if emulated compute overran."""
    out = Path(words[words.index("--out") + 1])
    status, message = 0, out.with_name(f"{out.name}.message.txt")
    if not _is_measured(out, words):
        if not (out / UNFINISHED).exists():  # with it, the run goes on by itself
            shutil.rmtree(out, ignore_errors=True)
        status = work.run(out.name, f"the run {out.name}", words, message=message, quiet=True)
    if status not in (judge.PASS, judge.INVALID):
        reason = message.read_text() if message.exists() else f"it {ending(status)}."
        message.unlink(missing_ok=True)
        raise ERRORS.get(status, EnvironmentFailure)(f"`dlio-bench {shlex.join(words)}` failed: {reason}")
    result, steps = load(next(out.glob("*/result.json")))
    if broken := [check for check in judge.failed_checks(result) if check.name != document.OVERRUN]:
        reasons = "; ".join(f"{check.name}: expected {check.expected}; found {check.found}" for check in broken)
        raise InvalidProbeError(f"The result in {out} is INVALID, so the capacity cannot be told: {reasons}")
    return result, document.runs(result, steps, out.relative_to(work.folder))


def _is_measured(out: Path, words: Sequence[str]) -> bool:
    """Whether the result of this very run is there, from a search that was stopped."""
    try:
        results = [load(path)[0] for path in out.glob("*/result.json")]
    except BenchError:  # cut short
        return False
    return bool(results) and not (out / UNFINISHED).exists() and results[0].command[1:] == list(words)
