"""`dlio-bench calibrate --compute`: a network's step times measured by another process, and a profile of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlio_bench import __version__
from dlio_bench.atomic_files import write_whole
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.benchmarks.model import choose, require_labels
from dlio_bench.benchmarks.profile import MEASURED, Profile, ProfileRow, load, parse, to_tables
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.environment import cpu_model, host_name, timestamp, usable_cores
from dlio_bench.harness.cluster.process import python_command
from dlio_bench.harness.cluster.start import Launch
from dlio_bench.harness.commands.calibration.compute.process import ComputeJob
from dlio_bench.harness.commands.calibration.options import Options
from dlio_bench.harness.ground.folders import require_file
from dlio_bench.harness.ground.launching import run_ranks
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.ground.user_files import to_toml
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.training.libraries import require_libraries
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_seconds

WORK = "dlio-bench-compute-"
LEAST_STEPS = 5
LOST = "no profile was written. Ask for smaller batches with --batch"
_HEAD = "# Written by `dlio-bench calibrate --compute`; use it with `--compute emulate:@FILE`.\n\n"


def calibrate(options: Options) -> int:
    """The whole command: 0 when the profile is written. Raises BenchError."""
    job, out = make_job(options), options.out or Path("compute.toml")
    require_place(out)
    progress = Progress()
    with temp_folder(WORK) as work:
        times = run_ranks(
            _process, job, work, progress.lines_under("calibrating"), share="set TMPDIR to one", lost=LOST
        )
    progress.clear()
    profile = make_profile(job, times)
    tables = to_tables(profile)
    parse(tables, str(out))  # refused before it is written
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, (_HEAD + to_toml(tables)).encode())
    if options.json:
        print(json.dumps({"schema": "dlio-bench/compute-calibration/1", "file": str(out), **tables}, indent=1))
    else:
        print(f"{render(profile)}\nwritten to {out}; use it with `--compute emulate:@{out}`")
    return 0


def make_job(options: Options) -> ComputeJob:
    """The job that the options mean. UsageError; EnvironmentFailure where there is no TensorFlow."""
    name, _, model_name = options.compute.partition(":")
    workload = find(name).of(options.variant)
    layout = find_layout(workload, options.variant, tiny=options.tiny, fill=PHYSICAL)
    model = choose(workload.models, layout.variant, model_name or None)
    require_labels(model)
    cores = usable_cores()
    if options.steps is not None and options.steps < LEAST_STEPS:
        raise UsageError(f"--steps {options.steps} are too few for a median. Time at least {LEAST_STEPS}.")
    if len(options.threads) > 1:
        raise UsageError(f"--threads {','.join(map(str, options.threads))}: with --compute give one number.")
    threads = sum(options.threads)
    if threads > cores:
        raise UsageError(f"--threads {threads}: this machine has {cores} cores. Use 1 to {cores}.")
    require_libraries(None, f"calibrate --compute {options.compute}")
    batches = options.batch or powers(workload.batch)
    return ComputeJob(name, layout.variant, model.name, options.tiny, batches, options.steps or 0, threads)


def powers(most: int) -> tuple[int, ...]:
    """1, 2, 4 and on, up to the published batch, which is among them."""
    below = (1 << power for power in range(most.bit_length()))
    return tuple(sorted({*(size for size in below if size <= most), most}))


def require_place(out: Path) -> None:
    """UsageError where the profile cannot be written, or would overwrite something else."""
    require_file(out)
    if out.exists():
        try:
            load(out)
        except UsageError as error:
            raise UsageError(f"--out {out} exists and is no compute profile. Name another file. ({error})") from None


def make_profile(job: ComputeJob, times: Mapping[str, Any]) -> Profile:
    """The profile of what `process.measure` found."""
    created = timestamp()
    command = f"dlio-bench {__version__} calibrate --compute {job.workload}:{job.model}"
    return Profile(
        workload=job.workload,
        variants=(job.variant,),
        model=job.model,
        device=times["device"] or cpu_model(),
        kind=MEASURED,
        source=f"measured by {command} on {host_name()}, {created}",
        rows=tuple(
            ProfileRow(row["batch"], row["seconds"], tuple(row["spread"]), row["steps"], row["forward_seconds"])
            for row in times["rows"]
        ),
        tiny=job.tiny,
        shape=tuple(times["shape"]),
        dtype=times["dtype"],
        by={
            "created": created,
            "version": __version__,
            "host": host_name(),
            "tensorflow": times["tensorflow"],
            "threads": str(times["threads"]),
        },
    )


def render(profile: Profile) -> str:
    """A measured profile as a table."""
    shape = " x ".join(map(str, profile.shape))
    lines = [
        f"{profile.workload} {profile.variants[0]}{', tiny' if profile.tiny else ''}: {profile.model} on samples of "
        f"{shape} {profile.dtype}",
        f"{profile.device}, {profile.by['threads']} threads, TensorFlow {profile.by['tensorflow']}",
    ]
    rows = []
    for row in profile.rows:
        assert row.spread is not None
        assert row.forward_seconds is not None
        spread = f"{format_seconds(row.spread[0])} - {format_seconds(row.spread[1])}"
        times = [format_seconds(row.seconds), spread, row.steps, format_seconds(row.forward_seconds)]
        rows.append([row.batch, *times, f"{row.batch / row.seconds:.3g}"])
    heads = ["batch", "step", "half of the steps", "timed", "forward", "samples/s"]
    return "\n".join([*lines, *table_lines(heads, rows)])


def _process(work: Path) -> Launch:
    """A process of its own measures: that a network does not fit into memory ends it alone."""
    return Launch("local", python_command("dlio_bench.harness.commands.calibration.compute.process", str(work)), {})
