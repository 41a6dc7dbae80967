"""`dlio-bench capacity`: probes rising scales with `dlio-bench run`, confirms the largest that holds, tells."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dlio_bench
from dlio_bench.errors import ERRORS, BenchError, EnvironmentFailure, OutOfTime, UsageError
from dlio_bench.harness.capacity.search import Scale, largest, scales
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.ground import unfinished
from dlio_bench.harness.ground.folders import UNFINISHED, output_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.ground.subcommands import going_on, run_command
from dlio_bench.harness.machine.memory import memory
from dlio_bench.harness.run.asked import data
from dlio_bench.harness.run.asked.options import Options as RunOptions
from dlio_bench.harness.run.asked.request import Request, look_up
from dlio_bench.harness.storage.pfs.spec import parse_spec
from dlio_bench.reports import capacity as document
from dlio_bench.reports import judge
from dlio_bench.reports.capacity import Capacity, Probe, Runs
from dlio_bench.reports.files import write_whole
from dlio_bench.reports.result import load
from dlio_bench.reports.typed import to_json
from dlio_bench.reports.types import Result
from dlio_bench.units import format_bytes, format_percent, format_seconds
from dlio_bench.wrapping import wrapped

RANKS_PER_CORE = 4  # emulated compute waits, and leaves the core to others
START_SECONDS = 4.0  # of a run besides its trials, for the estimate of the time alone
OF_MEMORY = 0.5  # of what is available: a dataset of this size stays in the page cache for the null run


@dataclass(frozen=True)
class Options:
    """The options of the command line. threads, staging, emulate_pfs: as `run` takes them."""

    workload: str
    au: float
    at_least: int | None
    ranks_per_node: int | None
    nodes: int
    launcher: str | None
    data: Path | None
    variant: str | None
    max_data: int | None
    cache_dir: Path | None
    tiny: bool
    reader: str
    compute: str
    batch: int | None
    steps: int | None
    trials: int
    threads: str | None
    staging: str | None
    emulate_pfs: str | None
    out: Path | None
    dry_run: bool
    json: bool


class InvalidProbeError(Exception):
    """A probe cannot be trusted."""


@dataclass(frozen=True)
class Setting:
    """What all probes share."""

    options: Options
    dataset: Path
    stored_bytes: int
    batch: int
    steps: int
    step_seconds: float

    def command(self, scale: Scale, *, null: bool, trials: int, out: Path) -> list[str]:
        """The words of `run` for a probe. null: with the data in the page cache, and nothing emulated below it."""
        options = self.options
        words = [
            "run", options.workload, "--nodes", str(scale.nodes), "--ranks-per-node", str(scale.ranks_per_node),
            "--reader", options.reader, "--data", str(self.dataset), "--batch", str(self.batch),
            "--steps", str(self.steps), "--compute", options.compute, "--cache", "warm" if null else "cold-epochs",
            "--trials", str(trials), "--warmup-trials", str(int(trials > 1)), "--out", str(out), "--json",
        ]  # fmt: skip
        words += ["--variant", options.variant] if options.variant else []
        words += ["--launcher", options.launcher] if options.launcher else []
        words += ["--threads", options.threads] if options.threads else []
        words += ["--staging", options.staging] if options.staging else []
        words += ["--emulate-pfs", options.emulate_pfs] if options.emulate_pfs and not null else []
        words += ["--tiny"] if options.tiny else []
        return words if trials > 1 and not null else [*words, "--no-verify"]

    def seconds(self, trials: int) -> float:
        """About how long a probe and its null run take where the storage gives half of what is asked."""
        return 2 * ((trials + int(trials > 1) + 1) * self.steps * self.step_seconds + 2 * START_SECONDS)


def capacity(options: Options) -> int:
    """Run the command: 0, 1 below --at-least, 3 if a probe is INVALID. UsageError, EnvironmentFailure."""
    ranks = options.ranks_per_node or RANKS_PER_CORE * len(os.sched_getaffinity(0))
    tried = scales(options.nodes, ranks)
    if options.at_least is not None and options.at_least > tried[-1].accelerators:
        raise UsageError(
            f"--at-least {options.at_least}: only up to {tried[-1].accelerators} accelerators would be tried. Ask for "
            "more with --ranks-per-node or --nodes."
        )
    request = look_up(_asked(options, tried[-1]))
    if request.step_time is None or not options.compute.startswith("emulate"):
        raise UsageError(f"--compute {options.compute}: AU needs emulated compute, such as emulate:50ms.")
    progress = Progress()
    data.await_given(request.options, progress)
    source = data.source(request)
    setting = _setting(options, request, source)
    if options.dry_run:
        plan = {
            "scales": [asdict(scale) for scale in tried],
            "data": str(setting.dataset),
            "batch": setting.batch,
            "stored_bytes": setting.stored_bytes,
            "steps": setting.steps,
            "step_seconds": setting.step_seconds,
        }
        print(json.dumps(plan) if options.json else _planned(setting, tried, source))
        return 0
    record = unfinished.begun(_facts(options))
    if before := unfinished.load(options.out):
        unfinished.require_same(before, record, options.out or Path())
    with output_folder(options.out, f"{options.workload}-capacity", goes_on=True) as folder:
        unfinished.save(record, folder)
        data.ready(source, request.layout, progress)
        try:
            answer = _search(setting, tried, folder, progress)
        except OutOfTime as error:
            raise OutOfTime(f"{error} What is finished stays finished. Go on with: {going_on(folder)}") from None
        except InvalidProbeError as reason:
            unfinished.forget(folder)
            progress.done()
            text = "\n".join(wrapped(str(reason), f"{'INVALID':<11}"))
            print(json.dumps({"invalid": str(reason)}) if options.json else text)
            return judge.INVALID
        write_whole(folder / document.NAME, (json.dumps(to_json(answer), indent=1) + "\n").encode())
        unfinished.forget(folder)
    print(json.dumps(to_json(answer)) if options.json else f"{document.render(answer)}\n  results  {folder}")
    return judge.PASS if answer.enough else judge.LIMIT_MISSED


def _facts(options: Options) -> dict[str, Any]:
    """What is asked for, but for where it goes, in JSON's own types."""
    facts = asdict(options) | {"out": None, "json": False}
    return {name: str(value) if isinstance(value, Path) else value for name, value in facts.items()}


def _asked(options: Options, scale: Scale) -> RunOptions:
    """The run at the largest scale, which decides the data."""
    return RunOptions(
        options.workload,
        nodes=(scale.nodes,),
        ranks_per_node=scale.ranks_per_node,
        readers=(options.reader,),
        variant=options.variant,
        data=options.data,
        max_data=options.max_data,
        cache_dir=options.cache_dir,
        tiny=options.tiny,
        batch=options.batch,
        steps=options.steps,
        compute=options.compute,
        cache="cold-epochs",
        emulate_pfs=parse_spec(options.emulate_pfs) if options.emulate_pfs else None,
        dry_run=options.dry_run,
    )


def _setting(options: Options, request: Request, source: data.Source) -> Setting:
    size = request.trial_size(source.samples)
    available = OF_MEMORY * memory().available
    if source.stored_bytes > available:
        raise UsageError(
            f"The null runs keep the dataset in memory, but its {format_bytes(source.stored_bytes)} are more than half "
            f"of what is available ({format_bytes(available)}). Give --max-data {int(available / 1e6)}MB or less, or a "
            "smaller dataset."
        )
    steps = options.steps or request.needed(size.batch)
    step_seconds = request.step_seconds(size.batch)
    return Setting(options, source.folder, source.stored_bytes, size.batch, steps, step_seconds)


def _planned(setting: Setting, tried: Sequence[Scale], source: data.Source) -> str:
    """What --dry-run prints."""
    each = setting.steps * setting.step_seconds
    most = 2 * max(1, len(tried).bit_length()) - 1
    seconds = most * 2 * (each + START_SECONDS) + (setting.options.trials + 1) * each + START_SECONDS
    made = "" if source.exists else ", made first"
    return "\n".join([
        f"{setting.options.workload}: from {tried[0]} to {tried[-1]} nodes x ranks, AU at least "
        f"{format_percent(setting.options.au)}",
        f"  each run  {setting.steps} steps of {format_seconds(setting.step_seconds)}, batch {setting.batch}, reader "
        f"{setting.options.reader}",
        f"  data      {format_bytes(setting.stored_bytes)} in {setting.dataset}{made}",
        f"  time      about {format_seconds(seconds)} at most: {most} scales, each with a null run, then "
        f"{setting.options.trials} runs to confirm",
        f"  command   dlio-bench {shlex.join(setting.command(tried[0], null=False, trials=1, out=Path('OUT')))}",
    ])  # fmt: skip


def _search(setting: Setting, tried: Sequence[Scale], folder: Path, progress: Progress) -> Capacity:
    """Grow and bisect with one run each; then confirm, one scale down each time that it fails."""
    options, probes = setting.options, dict[tuple[Scale, bool], Probe]()
    marks: dict[str, None] = {}

    def probed(scale: Scale, *, confirmed: bool) -> Probe:
        if (scale, confirmed) not in probes:
            trials = options.trials if confirmed else 1
            walltime.require(f"the search at {scale} nodes x ranks", setting.seconds(trials))
            name = f"{scale}{'-confirmed' if confirmed else ''}"
            progress.show(f"{options.workload}  {scale} ranks  {'confirming' if confirmed else 'probing'}")
            result, runs = _run(setting.command(scale, null=False, trials=trials, out=folder / name), folder)
            marks.update(dict.fromkeys(result.marks))
            null = probes.get((scale, False))
            if null is None:
                progress.show(f"{options.workload}  {scale} ranks  null run")
                _, memory_runs = _run(setting.command(scale, null=True, trials=1, out=folder / f"{name}-null"), folder)
            probes[scale, confirmed] = Probe(
                nodes=scale.nodes,
                ranks_per_node=scale.ranks_per_node,
                runs=runs,
                null=memory_runs if null is None else null.null,
                confirmed=confirmed,
            )
        return probes[scale, confirmed]

    best = largest(tried, lambda scale: probed(scale, confirmed=False).holds(options.au))
    while best and not probed(tried[best - 1], confirmed=True).holds(options.au):
        best -= 1
    progress.done()
    limit: document.Limit = document.ASKED
    if best < len(tried):
        failed = [probe for (scale, _), probe in probes.items() if scale == tried[best]]
        client = any(probe.client_limited(options.au) for probe in failed if not probe.holds(options.au))
        limit = document.CLIENT if client else document.STORAGE
    scale = tried[best - 1] if best else Scale(0, 0)
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
        marks=list(marks),
        probes=list(probes.values()),
    )


def _run(words: Sequence[str], folder: Path) -> tuple[Result, Runs]:
    """Run `dlio-bench` with these words; its result. An INVALID result counts only if emulated compute overran."""
    out = Path(words[words.index("--out") + 1])
    status, errors = 0, ""
    if not _is_measured(out, words):
        if not (out / UNFINISHED).exists():  # with it, the run goes on by itself
            shutil.rmtree(out, ignore_errors=True)
        status, errors = run_command(words, going_on(folder), told=False)
    if status not in (judge.PASS, judge.INVALID):
        reason = errors.strip().rpartition("dlio-bench: ")[2]
        raise ERRORS.get(status, EnvironmentFailure)(f"`dlio-bench {shlex.join(words)}` failed: {reason}")
    result, steps = load(next(out.glob("*/result.json")))
    if broken := [check for check in judge.failed(result) if check.name != document.OVERRUN]:
        reasons = "; ".join(f"{check.name}: expected {check.expected}; found {check.found}" for check in broken)
        raise InvalidProbeError(f"The result in {out} is INVALID, so the capacity cannot be told: {reasons}")
    return result, document.runs(result, steps, out.relative_to(folder))


def _is_measured(out: Path, words: Sequence[str]) -> bool:
    """Whether the result of this very run is there, from a search that was stopped."""
    try:
        results = [load(path)[0] for path in out.glob("*/result.json")]
    except BenchError:  # cut short
        return False
    return bool(results) and not (out / UNFINISHED).exists() and results[0].command[1:] == list(words)
