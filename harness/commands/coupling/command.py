"""`dlio-bench couple`: both sides launched, every way of coupling measured beside them alone, told and saved."""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from dlio_bench.benchmarks.grayscott import kernels, published, twin
from dlio_bench.benchmarks.grayscott.published import PUBLISHED, Settings
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster import watch
from dlio_bench.harness.cluster.environment import describe_host, provenance, usable_cores
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.commands.coupling.job import FILES, SST, Job
from dlio_bench.harness.commands.coupling.options import WAYS, Options
from dlio_bench.harness.commands.coupling.ways.files import MOST_RANKS
from dlio_bench.harness.ground import defaults
from dlio_bench.harness.ground.folders import output_folder, work_folder
from dlio_bench.harness.ground.launching import run_ranks
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.machine.memory import memory
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs import emulation
from dlio_bench.harness.storage.pfs.spec import describe
from dlio_bench.harness.streams import adios
from dlio_bench.harness.training.libraries import require_libraries
from dlio_bench.reports.coupling import document as report
from dlio_bench.reports.coupling.view import view
from dlio_bench.reports.document import result_file
from dlio_bench.reports.document.environment import EmulatedPfs
from dlio_bench.reports.document.marks import EMULATED_PFS, FEW_TRIALS, SHARED_CORES, TINY, VIRTUAL_NODES
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.judging import judge
from dlio_bench.reports.view.formatting import plural
from dlio_bench.reports.view.sections import NAME
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrap

STEPS = 200  # by default
TINY_SIZE, TINY_STEPS, TINY_PLOTGAP = 16, 20, 5
MOST_CONSUMERS = 3
SMALLEST, LARGEST = 12, 1024  # cells of an edge: the initial cube, and what a rank's arrays can hold
OF_MEMORY = 0.5  # of what is available
FOLDER = "dlio-bench-couple-"
FOREVER = 1e6  # seconds, for --timeout 0


def couple(options: Options) -> int:
    """The whole command: 0 when all was measured, and every output was what the solver computed. Raises BenchError."""
    settings = _settings(options)
    job = _job(options, settings)
    _require(options, job)
    ranks = Ranks("commands.coupling.rank", job.ranks, 1, "mpirun", virtual=True)
    argv = ranks.start().argv  # what cannot be launched is refused before anything is made
    if options.dry_run:
        print(json.dumps(_plan_document(job, argv)) if options.json else _describe_plan(options, job, argv))
        return judge.PASS
    progress = Progress()
    with output_folder(options.out, f"couple-{options.simulation}") as folder:
        with _places(options, job) as placed:
            show, share = progress.lines_under("couple"), "choose one with --out"
            measured = run_ranks(ranks.start, placed, work_folder(folder), show, share=share, folder_stays=True)
        progress.clear()
        document = report.complete(_document(options, job, measured))
        result_file.save(document, folder)
        view(document).write(folder / NAME)
    print(json.dumps(to_json(document)) if options.json else f"{view(document).text()}\n  results  {folder}")
    return judge.PASS


def _settings(options: Options) -> Settings:
    """The published settings with what was asked for. UsageError."""
    tiny = options.tiny
    settings = replace(
        PUBLISHED,
        size=options.size or (TINY_SIZE if tiny else PUBLISHED.size),
        steps=options.steps or (TINY_STEPS if tiny else STEPS),
        plotgap=options.plotgap or (TINY_PLOTGAP if tiny else PUBLISHED.plotgap),
    )
    if not SMALLEST <= settings.size <= LARGEST:
        raise UsageError(
            f"--size {settings.size}: the space needs {SMALLEST} cells along an edge for the initial cube, and has "
            f"{LARGEST} at most."
        )
    if settings.outputs < 2:
        raise UsageError(
            f"--steps {settings.steps} with --plotgap {settings.plotgap} gives {plural(settings.outputs, 'output')}, "
            f"and a twin learns from two that follow each other. Ask for --steps {2 * settings.plotgap} or more."
        )
    return settings


def _job(options: Options, settings: Settings) -> Job:
    trials = options.trials if options.trials is not None else defaults.TINY_TRIALS if options.tiny else defaults.TRIALS
    return Job(
        settings=settings,
        ways=tuple(way for way in WAYS if way in options.through),
        producers=options.producers,
        consumers=options.consumers,
        train_steps=options.train_steps_per_output,
        queue=options.queue,
        trials=trials,
        warmups=0 if options.tiny else defaults.WARMUP_TRIALS,
        seed=options.seed,
        kernel=options.kernel,
        folders=(),
        meeting="",
        board="",
        patience=watch.timeout() or FOREVER,
    )


def _require(options: Options, job: Job) -> None:
    """UsageError for what is out of range or does not fit together, EnvironmentFailure for what is missing."""
    most = min(job.settings.size, MOST_RANKS)
    if job.producers > most:
        raise UsageError(
            f"--producers {job.producers}: a solver of {job.settings.size} planes has {most} ranks at most."
        )
    if job.consumers > MOST_CONSUMERS:
        raise UsageError(f"--consumers {job.consumers}: ask for 1 to {MOST_CONSUMERS} twins.")
    if options.exchange_dir is not None and not options.exchange_dir.is_dir():
        raise UsageError(f"--exchange-dir {options.exchange_dir} is not a folder. Name one that is there.")
    needed = (job.consumers * job.settings.outputs + 8) * job.settings.output_bytes
    available = int(OF_MEMORY * memory().available)
    if needed > available:
        raise UsageError(
            f"Each of {plural(job.consumers, 'twin')} keeps {job.settings.outputs} outputs of "
            f"{format_bytes(job.settings.output_bytes)} in memory, to train alone and to compare what arrives: "
            f"{format_bytes(needed)} together, more than half of what is available ({format_bytes(available)}). Use "
            "fewer --steps, a larger --plotgap or a smaller --size."
        )
    require_libraries(None, "couple")
    if job.kernel == kernels.NUMBA:
        kernels.kernel(job.kernel)
    if set(job.ways) - {FILES}:
        try:
            adios.require()
        except EnvironmentFailure as error:
            raise EnvironmentFailure(f"{error} Or couple through files alone: --through files.") from error


@contextmanager
def _places(options: Options, job: Job) -> Iterator[Job]:
    """The job with the folders in which both sides meet, which are gone afterwards. EnvironmentFailure."""
    with temp_folder(FOLDER, options.exchange_dir) as place:
        shared, meeting = place / "shared", place / "meeting"
        shared.mkdir()
        meeting.mkdir()
        _require_space(job, shared)
        with emulation.places(options.emulate_pfs, shared, 1 + job.consumers, writable=True) as (folders, board):
            yield replace(job, folders=folders, meeting=str(meeting), board=board)


def _require_space(job: Job, folder: Path) -> None:
    """EnvironmentFailure where the outputs of one case do not fit."""
    needed, free = job.settings.outputs * job.settings.output_bytes * 1.1, free_bytes(folder)
    if set(job.ways) - {"sst"} and free is not None and free < needed:
        raise EnvironmentFailure(
            f"The outputs of a case need {format_bytes(needed)}, and {folder.parent.parent} has {format_bytes(free)} "
            "free. Free space there, name another folder with --exchange-dir, or use fewer --steps."
        )


def _document(options: Options, job: Job, measured: dict[str, Any]) -> report.Document:
    settings, pfs = job.settings, options.emulate_pfs
    names = report.Traffic.__struct_fields__
    trials = [
        {**trial, "traffic": None if trial["traffic"] is None else dict(zip(names, trial["traffic"], strict=True))}
        for trial in measured["trials"]
    ]
    as_published = settings == PUBLISHED
    outputs = sum(
        side["outputs"] for trial in trials for side in trial["sides"][job.producers :] if side is not None
    )  # fmt: skip
    marks = [TINY] if options.tiny else []
    marks += [VIRTUAL_NODES, *([EMULATED_PFS] if pfs is not None else [])]
    marks += [SHARED_CORES] if job.ranks > usable_cores() else []
    marks += [FEW_TRIALS] if job.trials < defaults.TRIALS else []
    content = {
        "schema": report.SCHEMA,
        "kind": "couple",
        "simulation": options.simulation,
        **provenance(),
        "code_digest": job.code_digest,
        "settings": {**asdict(settings), "seed": job.seed, "kernel": job.kernel, "source": published.EXAMPLE},
        "outputs": settings.outputs,
        "output_bytes": settings.output_bytes,
        "producers": job.producers,
        "consumers": job.consumers,
        "twin": twin.NAME,
        "twin_parameters": measured["parameters"],
        "train_steps": job.train_steps,
        "queue": job.queue,
        "ways": list(job.ways),
        "trials": trials,
        "range": measured["range"],
        "published_range": [list(published.RANGE_U), list(published.RANGE_V)] if as_published else None,
        "published": [{**asdict(row), "source": published.DECK} for row in published.SLOWDOWNS],
        "checks": [
            {
                "name": "order",
                "found": f"{plural(outputs, 'output')} came to twins, none missing, doubled or out of turn",
            },
            {"name": "content", "found": "the CRC of every output is that of the solver's run before the clock"},
        ],
        "marks": marks,
        "folder": str(options.exchange_dir or Path(os.environ.get("TMPDIR", "/tmp"))),
        "emulated_pfs": None if pfs is None else to_json(EmulatedPfs(says=describe(pfs), **asdict(pfs))),
        "host": to_json(describe_host(options.exchange_dir or Path("/tmp"))),
    }
    return convert(content, report.Document)


def _carried_bytes(job: Job) -> dict[str, dict[str, int]]:
    """Bytes of outputs in a case of each way: written and read through the file system, and sent in a stream.

    BP files add what ADIOS2 keeps with each output.
    """
    written = job.settings.outputs * job.settings.output_bytes
    got = job.consumers * written
    return {
        way: {
            "written_bytes": 0 if way == SST else written,
            "read_bytes": 0 if way == SST else got,
            "sent_bytes": got if way == SST else 0,
        }
        for way in job.ways
    }


def _plan_document(job: Job, argv: Sequence[str]) -> dict[str, Any]:
    """What --dry-run --json prints. Bytes beside `ways`: the most of any way."""
    settings, carried = job.settings, _carried_bytes(job)
    return {
        "cases": list(job.cases),
        "trials": job.trials,
        "warmups": job.warmups,
        "outputs": settings.outputs,
        "output_bytes": settings.output_bytes,
        "ranks": job.ranks,
        "memory_bytes": job.consumers * settings.outputs * settings.output_bytes,
        **{kind: max(row[kind] for row in carried.values()) for kind in ("written_bytes", "read_bytes", "sent_bytes")},
        "ways": carried,
        "argv": list(argv),
    }


def _describe_carried(carried: dict[str, int], place: str) -> str:
    """What one way carries in a case. place: where its files are."""
    written, read, sent = (format_bytes(carried[kind]) for kind in ("written_bytes", "read_bytes", "sent_bytes"))
    if carried["sent_bytes"]:
        return f"{sent} sent to the twins over TCP; nothing written or read through the file system"
    return f"{written} written and {read} read in a case, on {place}"


def _describe_plan(options: Options, job: Job, argv: Sequence[str]) -> str:
    """What --dry-run prints."""
    settings, pfs = job.settings, options.emulate_pfs
    state, outputs = format_bytes(settings.output_bytes), plural(settings.outputs, "output")
    entries = {
        "solver": f"{settings.size}³ cells of u and v, {settings.steps} steps, {plural(job.producers, 'rank')}, "
        f"{job.kernel}; {outputs} of {state}, one each {settings.plotgap} steps",
        "twins": f"{job.consumers}, each {plural(job.train_steps, 'training step')} an output",
        "cases": f"{', '.join(job.cases)}; each {plural(job.warmups, 'time')} to warm up, then in "
        f"{plural(job.trials, 'trial')}",
        "memory": f"{format_bytes(job.consumers * settings.outputs * settings.output_bytes)} for the twins' reference",
        **{
            way: _describe_carried(row, "this machine" if pfs is None else describe(pfs))
            for way, row in _carried_bytes(job).items()
        },
        "checks": "number and CRC of every output, and that it is that of the run before the clock; else the command "
        "ends with status 5",
        "command": shlex.join(argv),
    }
    return "\n".join(line for label, words in entries.items() for line in wrap(words, f"  {label:<9}", 11))
