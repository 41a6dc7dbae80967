"""`dlio-bench bench-readers`: datasets made, ranks launched, ratios worked out and shown beside what is expected."""

import json
from statistics import median
from typing import Any

from msgspec import Struct

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.formats.container import DALI, H5PY, TF_DATA, Container
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.commands.bench_readers import job as names
from dlio_bench.harness.commands.bench_readers.job import Job
from dlio_bench.harness.commands.bench_readers.options import Options
from dlio_bench.harness.commands.run.asked.data import SEED, shards_of
from dlio_bench.harness.commands.run.asked.sizing import trial_size
from dlio_bench.harness.ground.defaults import MOST_THREADS, STAGING_BYTES
from dlio_bench.harness.ground.folders import cache_folder
from dlio_bench.harness.ground.launching import run_ranks
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.readers import web_loader
from dlio_bench.harness.storage.direct import alignment_of, require_folder
from dlio_bench.reports.view.formatting import format_share, plural
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrap

ORDER_SEED = 7
RAW = "raw preadv"


class Ratio(Struct, frozen=True):
    """Rate of `ours` over that of the fastest of `yardsticks`, expected to be at least `least`. label: of them all.

    least: from the page cache; None: nothing is expected of a device.
    """

    ours: str
    label: str
    yardsticks: tuple[str, ...]
    least: float | None


_BESIDE = {  # a container's library -> what is expected beside it
    H5PY: Ratio(names.PREFETCH, H5PY, tuple(names.H5PYS), 1.5),
    TF_DATA: Ratio(names.PREFETCH_CRC, TF_DATA, names.TFDATAS, 3.0),
    DALI: Ratio(names.PREFETCH, DALI, tuple(names.DALIS), 1.0),
}


def ratios(workload: Workload, container: Container, ranks: int, *, tiny: bool) -> list[Ratio]:
    """What is expected of a workload, most telling first. Small samples are only held against plain loops, and samples
    that are not stored as they are delivered only against our other readers.
    """
    of_all = [
        # the same order: what reading ahead costs
        Ratio(names.PREFETCH, names.SHUFFLED, (names.SHUFFLED,), 1.0),
        Ratio(names.PREFETCH, names.NAIVE, (names.NAIVE,), 0.95),
    ]
    if not container.plain:
        return of_all
    of_all.append(Ratio(names.NAIVE, names.PLAIN, (names.PLAIN,), 1.0))
    if container.read_with == DALI:  # opening files is most of the work, and raw reads have theirs open
        return [_BESIDE[DALI], *of_all]
    if tiny:
        return of_all
    raw = Ratio(names.PREFETCH, RAW, tuple(names.raws(ranks)), workload.expected.of_raw)
    beside = [_BESIDE[container.read_with]] if container.read_with else []
    beside.append(Ratio(names.PREFETCH, "torch", tuple(names.TORCHES), 1.0))
    beside.append(Ratio(names.PREFETCH, "webdataset", tuple(names.WEBDATASETS), 1.0))
    return [raw, *beside, *of_all]


def direct_ratios(ranks: int) -> list[Ratio]:
    """What reads past the page cache."""
    return [
        Ratio(names.PREFETCH, RAW, tuple(names.raws(ranks)), None),
        Ratio(names.PREFETCH, names.SHUFFLED, (names.SHUFFLED,), None),
        Ratio(names.PREFETCH, names.NAIVE, (names.NAIVE,), None),
    ]


def bench_readers(options: Options) -> int:
    """The whole command: 0 whatever the ratios are. Raises BenchError."""
    if options.io == DIRECT:
        require_folder(cache_folder(options.cache_dir))
    workloads = options.workloads or tuple(registry.WORKLOADS)
    for name in workloads:
        registry.find(name)
    progress = Progress()
    documents = [_compare(name, options, progress) for name in workloads]
    progress.clear()
    print(json.dumps(documents, indent=1) if options.json else "\n\n".join(map(_render, documents)))
    return 0


def _compare(name: str, options: Options, progress: Progress) -> dict[str, Any]:
    workload = registry.find(name)
    variant = options.variant or workload.expected.variant
    workload, layout = workload.of(variant), find_layout(workload, variant, tiny=options.tiny, fill=RANDOM)
    files = max(options.ranks, round(options.size / layout.file_bytes))
    digest = spec_digest(layout, files, SEED).removeprefix("sha256:")[:12]
    tiny = "-tiny" if options.tiny else ""
    folder = cache_folder(options.cache_dir).resolve() / "datasets" / f"{name}-{layout.variant}{tiny}-random-{digest}"
    dataset = generate(layout, files, folder, SEED, progress=progress.bytes_written)
    expected = ratios(workload, CONTAINERS[layout.container], options.ranks, tiny=options.tiny)
    if options.io == DIRECT:
        alignment_of(dataset)
        expected = direct_ratios(options.ranks)
    if web_loader.is_installed() and any(ratio.label == "webdataset" for ratio in expected):
        shards_of(dataset, workload.view, progress)
    chosen = trial_size(dataset.training_samples, ranks=options.ranks, published_batch=workload.batch)
    largest = int(layout.sample_bytes * chosen.batch)
    job = Job(
        workload=name,
        dataset=str(folder),
        contenders=tuple(dict.fromkeys(name for ratio in expected for name in (ratio.ours, *ratio.yardsticks))),
        ranks=options.ranks,
        threads=options.threads or MOST_THREADS,
        staging_bytes=options.staging or max(STAGING_BYTES, 3 * largest),
        batch=chosen.batch,
        trials=options.trials,
        seed=ORDER_SEED,
        options=options,
    )
    several = job.ranks > 1
    ranks = Ranks("commands.bench_readers.rank", job.ranks, 1, "mpirun" if several else None, virtual=several)
    with temp_folder("dlio-bench-readers-") as work:
        measured = run_ranks(ranks.start, job, work, progress.lines_under(name), share="set TMPDIR to one")
    return summarise(job, layout.variant, measured, expected, tiny=options.tiny)


def summarise(job: Job, variant: str, measured: dict[str, Any], expected: list[Ratio], *, tiny: bool) -> dict[str, Any]:
    """What `--json` prints of a workload: rates, CPU, and each ratio as the median over trials."""
    times: dict[str, list[dict[str, float]]] = measured["times"]
    rates = {name: [trial["bytes"] / trial["seconds"] for trial in trials] for name, trials in times.items()}
    cpu = {name: [1e6 * trial["cpu"] / trial["samples"] for trial in trials] for name, trials in times.items()}
    rows = []
    fastest: dict[str, str] = {}  # by label
    for ratio in expected:
        there = [name for name in ratio.yardsticks if name in rates]
        pairs = []
        if there:
            # by its median: the fastest of each trial would be as fast as the machine's best moment
            best = fastest[ratio.label] = max(there, key=lambda name: median(rates[name]))
            # pairs of one trial, so that a drift of the machine meets both sides
            pairs = [ours / other for ours, other in zip(rates[ratio.ours], rates[best], strict=True)]
        rows.append(
            {
                "ours": ratio.ours,
                "yardstick": ratio.label,
                "fastest": fastest.get(ratio.label),
                "expected_at_least": ratio.least,
                "ratio": median(pairs) if pairs else None,
                "ratios": pairs,
                "not_measured": None if pairs else measured["missing"].get(ratio.yardsticks[0], ""),
            }
        )
    one_trial = next(iter(times.values()))[0]
    beyond = (
        [ours - read for ours, read in zip(cpu[names.PREFETCH], cpu[fastest[RAW]], strict=True)]
        if RAW in fastest
        else []
    )
    return {
        "workload": job.workload,
        "variant": variant,
        "tiny": tiny,
        "ranks": job.ranks,
        "threads": job.threads,
        "batch": job.batch,
        "trials": job.trials,
        "sample_bytes": one_trial["bytes"] / one_trial["samples"],
        "io": job.options.io,
        "resident_share": measured["resident_share"],
        "bytes_per_second": {name: median(trials) for name, trials in rates.items()},
        "cpu_us_per_sample": {name: median(trials) for name, trials in cpu.items()},
        "checked": measured["checked"],
        "cpu_us_beyond_the_read": median(beyond) if beyond else None,
        "ratios": rows,
    }


def _render(document: dict[str, Any]) -> str:
    """At most 80 columns."""
    kind = f"{document['workload']} {document['variant']}{' (tiny)' if document['tiny'] else ''}"
    samples = f"samples of {format_bytes(document['sample_bytes'])}, batch {document['batch']}"
    trials, where = plural(document["trials"], "trial"), "past the page cache (O_DIRECT)"
    if document["io"] != DIRECT:
        where = f"{format_share(document['resident_share'])} of the files in memory"
    lines = [
        f"{kind}, {samples}, {plural(document['ranks'], 'rank')}",
        f"  median of {trials}, interleaved; {where}",
    ]
    rows = [
        (name, f"{format_bytes(rate)}/s", f"{document['cpu_us_per_sample'][name]:.1f} us", document["checked"][name])
        for name, rate in document["bytes_per_second"].items()
    ]
    lines += table_lines(["", "rate", "CPU a sample", "checked"], rows)
    for row in document["ratios"]:
        what = f"{row['ours']} / {row['fastest'] or row['yardstick']}"
        if row["ratio"] is None:
            lines += wrap(f"not measured: {row['not_measured']}", f"  {what}: ", 4, whole_words=True)
            continue
        least = row["expected_at_least"]
        lines.append(f"  {what:<48}{row['ratio']:>6.2f}" + ("" if least is None else f"   expected >= {least:.2f}"))
    beyond = document["cpu_us_beyond_the_read"]
    if beyond is not None:
        most = registry.find(document["workload"]).expected.cpu_us
        limit = f"   expected < {most:.0f} us" if most is not None and document["io"] != DIRECT else ""
        lines.append(f"  {'CPU a sample beyond raw preadv':<45}{beyond:>6.1f} us{limit}")
    return "\n".join(lines)
