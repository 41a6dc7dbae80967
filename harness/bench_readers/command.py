"""`dlio-bench bench-readers`: datasets made, ranks launched, ratios worked out and shown beside what is expected."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.bench_readers import job as names
from dlio_bench.harness.bench_readers.job import MEASURED, Job
from dlio_bench.harness.bench_readers.rank import measure
from dlio_bench.harness.cluster import launchers
from dlio_bench.harness.cluster.code import code_digest
from dlio_bench.harness.cluster.process import launch, python_command
from dlio_bench.harness.cluster.solo import Solo
from dlio_bench.harness.cluster.start import plan
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.readers.threads import MOST_THREADS
from dlio_bench.harness.run.asked.data import SEED, cache_folder
from dlio_bench.harness.run.asked.jobs import STAGING_BYTES
from dlio_bench.harness.run.asked.sizing import cut
from dlio_bench.reports.formatting import format_share, plural
from dlio_bench.units import format_bytes

# What is compared: the variants whose samples are plain extents.
VARIANTS = {"hepcnnb": "224", "cdb": "cori", "cosmoflow": "sc18", "imagenet": "tfrecord"}
ORDER_SEED = 7
RAW = "raw preadv"
MOST_CPU = 25.0  # us a record of 115 KB, beyond the read itself


@dataclass(frozen=True)
class Options:
    """What was asked of `dlio-bench bench-readers`."""

    workloads: tuple[str, ...]
    ranks: int
    trials: int
    size: int
    cache_dir: Path | None
    tiny: bool
    json: bool
    threads: int | None = None  # as `run`


@dataclass(frozen=True)
class Ratio:
    """Rate of `ours` over that of the fastest of `yardsticks`, expected to be at least `least`. label: of them all."""

    ours: str
    label: str
    yardsticks: tuple[str, ...]
    least: float


def ratios(workload: str, container: str, ranks: int, *, tiny: bool) -> list[Ratio]:
    """What is expected of a workload, most telling first. Small samples are only held against plain loops."""
    found = [
        # the same order: what reading ahead costs
        Ratio(names.PREFETCH, names.SHUFFLED, (names.SHUFFLED,), 1.0),
        Ratio(names.PREFETCH, names.NAIVE, (names.NAIVE,), 0.95),
        Ratio(names.NAIVE, names.PLAIN, (names.PLAIN,), 1.0),
    ]
    if tiny:
        return found
    if container == "hdf5":
        found.insert(0, Ratio(names.PREFETCH, "h5py", tuple(names.H5PYS), 1.5))
    else:
        found.insert(0, Ratio(names.PREFETCH_CRC, "tf.data", names.TFDATAS, 3.0))
    least = 0.85 if workload == "imagenet" else 0.90
    return [Ratio(names.PREFETCH, RAW, tuple(names.raws(ranks)), least), *found]


def bench_readers(options: Options) -> int:
    """The whole command: 0 whatever the ratios are. Raises BenchError."""
    for flag, value in (("--ranks", options.ranks), ("--trials", options.trials)):
        if value < 1:
            raise UsageError(f"{flag} {value} is too small: it must be at least 1.")
    workloads = options.workloads or tuple(VARIANTS)
    for name in workloads:
        registry.find(name)
    progress = Progress()
    found = [_compare(name, options, progress) for name in workloads]
    progress.done()
    print(json.dumps(found, indent=1) if options.json else "\n\n".join(map(_render, found)))
    return 0


def _compare(name: str, options: Options, progress: Progress) -> dict[str, Any]:
    workload = registry.find(name)
    layout = find_layout(workload, VARIANTS[name], tiny=options.tiny, fill=RANDOM)
    files = max(options.ranks, round(options.size / layout.file_bytes))
    digest = spec_digest(layout, files, SEED).removeprefix("sha256:")[:12]
    tiny = "-tiny" if options.tiny else ""
    folder = cache_folder(options.cache_dir).resolve() / "datasets" / f"{name}-{layout.variant}{tiny}-random-{digest}"
    dataset = generate(layout, files, folder, SEED, progress=progress.bytes_written)
    expected = ratios(name, layout.container, options.ranks, tiny=options.tiny)
    chosen = cut(dataset.training_samples, ranks=options.ranks, published_batch=workload.batch)
    largest = int(layout.sample_bytes * chosen.batch)
    job = Job(
        workload=name,
        dataset=str(folder),
        code_digest=code_digest(),
        contenders=tuple(dict.fromkeys(who for one in expected for who in (one.ours, *one.yardsticks))),
        ranks=options.ranks,
        threads=options.threads or MOST_THREADS,
        staging_bytes=max(STAGING_BYTES, 3 * largest),
        batch=chosen.batch,
        trials=options.trials,
        seed=ORDER_SEED,
    )

    def heard(event: dict[str, Any]) -> None:
        progress.show(f"{name}  {event['contender']}  trial {event['trial'] + 1}/{options.trials}")

    measured = _run(job, heard)
    return facts(job, layout.variant, measured, expected, tiny=options.tiny)


def _run(job: Job, heard: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dlio-bench-readers-") as place:
        work = Path(place)
        job.save(work)
        command = python_command("dlio_bench.harness.bench_readers.rank", str(work))
        start = plan(launchers.Job(job.ranks, 1, command, virtual=job.ranks > 1), None if job.ranks == 1 else "mpirun")
        if start.launcher == "local":
            measure(job, work, Solo(), heard)
        else:
            launch(start.argv, {**os.environ, **start.env}, work, heard, folder_stays=False)
        try:
            found: dict[str, Any] = json.loads((work / MEASURED).read_text())
        except FileNotFoundError:
            raise EnvironmentFailure(
                f"The ranks ended well, but left no {MEASURED} in {work}. Look at the file system of that folder."
            ) from None
    return found


def facts(job: Job, variant: str, measured: dict[str, Any], expected: list[Ratio], *, tiny: bool) -> dict[str, Any]:
    """What `--json` prints of a workload: rates, CPU, and each ratio as the median over trials."""
    times: dict[str, list[dict[str, float]]] = measured["times"]
    rates = {name: [one["bytes"] / one["seconds"] for one in own] for name, own in times.items()}
    cpu = {name: [1e6 * one["cpu"] / one["samples"] for one in own] for name, own in times.items()}
    rows = []
    fastest: dict[str, str] = {}  # by label
    for one in expected:
        there = [name for name in one.yardsticks if name in rates]
        pairs = []
        if there:
            # by its median: the fastest of each trial would be as fast as the machine's best moment
            best = fastest[one.label] = max(there, key=lambda name: median(rates[name]))
            # pairs of one trial, so that a drift of the machine meets both sides
            pairs = [ours / other for ours, other in zip(rates[one.ours], rates[best], strict=True)]
        rows.append(
            {
                "ours": one.ours,
                "yardstick": one.label,
                "fastest": fastest.get(one.label),
                "expected_at_least": one.least,
                "ratio": median(pairs) if pairs else None,
                "ratios": pairs,
                "not_measured": None if pairs else measured["missing"].get(one.yardsticks[0], ""),
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
        "resident_share": measured["resident_share"],
        "bytes_per_second": {name: median(own) for name, own in rates.items()},
        "cpu_us_per_sample": {name: median(own) for name, own in cpu.items()},
        "cpu_us_beyond_the_read": median(beyond) if beyond else None,
        "ratios": rows,
    }


def _render(found: dict[str, Any]) -> str:
    """At most 80 columns."""
    kind = f"{found['workload']} {found['variant']}{' (tiny)' if found['tiny'] else ''}"
    samples = f"samples of {format_bytes(found['sample_bytes'])}, batch {found['batch']}"
    trials, resident = plural(found["trials"], "trial"), format_share(found["resident_share"])
    lines = [
        f"{kind}, {samples}, {plural(found['ranks'], 'rank')}",
        f"  median of {trials}, interleaved; {resident} of the files in memory",
        f"  {'':<30}{'rate':>12}{'CPU a sample':>16}",
    ]
    lines += [
        f"  {name:<30}{format_bytes(rate) + '/s':>12}{found['cpu_us_per_sample'][name]:>13.1f} us"
        for name, rate in found["bytes_per_second"].items()
    ]
    for row in found["ratios"]:
        what = f"{row['ours']} / {row['fastest'] or row['yardstick']}"
        value = f"not measured: {row['not_measured']}" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(f"  {what:<48}{value:>6}   expected >= {row['expected_at_least']:.2f}")
    beyond = found["cpu_us_beyond_the_read"]
    if beyond is not None:
        limit = f"   expected < {MOST_CPU:.0f} us" if found["workload"] == "imagenet" else ""
        lines.append(f"  {'CPU a sample beyond raw preadv':<45}{beyond:>6.1f} us{limit}")
    return "\n".join(lines)
