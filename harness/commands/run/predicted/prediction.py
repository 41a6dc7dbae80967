"""`run --predict`: how long the epochs of a run take, from its plan and a description of the machine.

The description is loaded or measured, and the prediction written, before the run starts.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from msgspec import Struct, structs

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.environment import timestamp
from dlio_bench.harness.cluster.system import MB, System, load_system
from dlio_bench.harness.commands.calibration import command as calibration
from dlio_bench.harness.commands.calibration import description
from dlio_bench.harness.commands.calibration.options import Options as Calibration
from dlio_bench.harness.commands.calibration.probes import rate_of
from dlio_bench.harness.commands.run.asked.job import Job, resolved_policy, shape_of
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.predicted.files import execute_files
from dlio_bench.harness.commands.run.predicted.placed import all_bypass, execute_placed, layouts
from dlio_bench.harness.commands.run.predicted.runtime import is_packed, is_readable
from dlio_bench.harness.commands.run.predicted.setting import Executed, Plans, Setting
from dlio_bench.harness.commands.run.predicted.streams import execute_streams, rates_of
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.plan.placement.rule import DoesNotApplyError
from dlio_bench.harness.plan.policies import AHEAD, MODELLED, REDRAWN, STREAM, Policy, order_of
from dlio_bench.harness.readers.placed.rules import draw_of
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.storage.pfs.spec import describe
from dlio_bench.harness.streams.adios import SST
from dlio_bench.harness.streams.settings import BLOCK
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.marks import COLD_EPOCHS
from dlio_bench.reports.document.typed import convert
from dlio_bench.reports.document.types import Draft, Prediction

SCHEMA = "dlio-bench/prediction/1"
PREDICTION_FILE, SYSTEM_FILE = "prediction.json", "system.toml"
SCRATCH_BYTES = 256_000_000  # that the calibration of a run reads
MOST_READS = 600_000  # simulated for a reader; of a larger run only the first steps of the first epochs
LEAST_EPOCHS = 3  # the first, and two later ones


class Forecast(Struct, frozen=True):
    """The document of prediction.json."""

    document: Mapping[str, Any]

    def add_prediction(self, measured: Draft, job: Job) -> Draft:
        """A draft result with the prediction of its reader in a job."""
        rows = {(row["reader"], row["nodes"]): row for row in self.document["rows"]}
        row = rows.get((measured.policy.alias, job.nodes))
        if row is None:
            return measured
        about = {"system": self.document["system"]["name"], "notes": self.document["notes"]}
        return structs.replace(measured, prediction=convert(row | about, Prediction))


def forecast(options: Options, jobs: Sequence[Job], dataset: Dataset, folder: Path, progress: Progress) -> Forecast:
    """Predict every reader of every job, and write prediction.json into `folder`. UsageError, EnvironmentFailure."""
    system = (
        _calibrate(options, jobs, dataset, folder, progress) if options.system is None else load_system(options.system)
    )
    if is_packed(dataset) and not options.decode:
        progress.show("measuring how fast samples are unpacked")
        system = structs.replace(system, preprocess=rate_of(SampleView(dataset, jobs[0].view)) / MB)
    notes = list(dict.fromkeys(note for job in jobs for note in require_known(job, system, dataset.digest)))
    progress.show("predicting")
    rows = [row for job in jobs for row in predict(job, dataset, system)]
    document = {
        "schema": SCHEMA,
        "created": timestamp(),
        "system": {"name": system.name, "estimated": list(system.estimated), "by": dict(system.by)},
        "notes": notes,
        "rows": rows,
    }
    write_whole(folder / PREDICTION_FILE, json.dumps(document, indent=1, allow_nan=False).encode())
    return Forecast(document)


def require_possible(options: Options, folder: Path) -> None:
    """UsageError, before the run makes anything, for a description or a place for test files that cannot be used.

    folder: where the dataset is or will be.
    """
    if options.system is not None:
        load_system(options.system)
    elif folder.exists() and not os.access(folder.parent, os.W_OK):
        raise UsageError(
            f"--predict first measures the file system of {folder} with test files beside it, and {folder.parent} "
            "cannot be written. Calibrate in another folder of this file system (`dlio-bench calibrate`), and name the "
            "description with --system."
        )


def _calibrate(options: Options, jobs: Sequence[Job], dataset: Dataset, folder: Path, progress: Progress) -> System:
    """Measure this machine with test files beside the dataset, and leave the description beside the prediction."""
    staged = any(job.tiers.disk or any(row.rule.files for row in job.readers.values()) for job in jobs)
    settings = Calibration(
        pfs=dataset.folder.parent,
        local=(options.local_tier or Path(gettempdir())) if staged else None,
        nodes=max(options.nodes),
        size=SCRATCH_BYTES,
        workload=options.workload if options.decode else None,
        emulate_pfs=options.emulate_pfs,
        launcher=options.launcher,
        streams=any(job.streaming is not None and not job.streaming.inline for job in jobs),
    )
    measured, declares = calibration.measure_table(settings, progress), calibration.default_declaration(settings)
    write_whole(folder / SYSTEM_FILE, description.text(declares, measured).encode())
    return description.system_of(declares, measured, str(folder / SYSTEM_FILE))


def predict(job: Job, dataset: Dataset, system: System) -> list[dict[str, Any]]:
    """A prediction of the first measured trial for each reader of the job, or the reason why there is none.

    {"reader", "nodes", "ranks_per_node", "epoch_seconds": [a number an epoch] or None, "first_epoch_seconds",
    "later_epochs_seconds" (None for one epoch), "elapsed_seconds", "stall_share", "bytes": {"pfs", "local"},
    "simulated_share" (of the steps), "reason"}.
    """
    workload = job.application
    shape = shape_of(job, dataset)
    # as in a run: orders that keep files together fill fewer steps, and all readers take the least
    steps = min(order_of(resolved_policy(row, workload, shape)).fit(shape).steps for row in job.readers.values())
    rows = []
    for name, row in job.readers.items():
        known = {"reader": name, "nodes": job.nodes, "ranks_per_node": job.ranks_per_node}
        figures: dict[str, Any] = dict.fromkeys(_FIGURES)
        reason = _why_unpredictable(row, job, dataset)
        try:
            if reason is None:
                plans = _plans(job, dataset, row, steps)
                setting = Setting(job, dataset, system, row, plans)
                reason = _cannot_keep(setting) if row.rule.keeps_samples else None
                if reason is None:
                    figures = _figures(setting)
        except DoesNotApplyError as error:
            reason = str(error)
        rows.append(known | figures | {"reason": reason})
    return rows


_FIGURES = (
    "epoch_seconds", "first_epoch_seconds", "later_epochs_seconds", "elapsed_seconds", "stall_share", "bytes",
    "simulated_share",
)  # fmt: skip


def require_known(job: Job, system: System, folder_digest: str) -> tuple[str, ...]:
    """What a user should know of the description before believing it. UsageError if it cannot be used.

    A description measured on the run's dataset is refused: a prediction from it would prove nothing.
    """
    if folder_digest in system.by.get("data", ""):
        raise UsageError(
            f"--system {system.name} was calibrated on the dataset that this run reads, so a prediction would prove "
            "nothing. Calibrate on other data: dlio-bench calibrate makes its own."
        )
    if job.decode and system.preprocess == float("inf"):
        raise UsageError(
            f"--predict with --decode needs a rate of preprocessing, and system {system.name} has none. Measure it "
            f"with dlio-bench calibrate --workload {job.workload}."
        )
    notes = []
    if job.validation:
        notes.append("validation passes are not predicted: predicted times are those of training alone")
    if job.nodes > 1 and not system.network:
        notes.append("the description has no rate of the network: exchanges between nodes are taken to need no time")
    if job.streaming is not None and not job.streaming.inline:
        _, note = rates_of(system, virtual=job.virtual, nodes=job.nodes)
        notes += [] if note is None else [f"the description has no rate of streams: {note}"]
    if system.pfs_stream is None:
        notes.append("the description does not say how fast one thread reads: reads are taken to have no latency")
    if job.nodes > (most := max(nodes for nodes, _ in system.pfs.points)):
        notes.append(f"the rate of the file system is known up to {most} nodes, and taken to be the same beyond")
    here = None if job.pfs is None else describe(job.pfs)
    if system.by and system.by.get("emulated") != here:
        notes.append(
            f"calibrated on {system.by.get('emulated') or 'real storage'}, and the run reads {here or 'real storage'}"
        )
    if system.estimated:
        notes.append(f"estimated, from no source: {', '.join(system.estimated)}")
    return tuple(notes)


def _why_unpredictable(row: Policy, job: Job, dataset: Dataset) -> str | None:
    """Why a reader cannot be predicted."""
    streaming = job.streaming if row.delivery == STREAM else None
    reasons = {
        f"its delivery ({row.delivery}) is not modelled": row.delivery not in MODELLED and streaming is None,
        "its files are read through their container's library, which is not modelled": not is_readable(dataset),
        "epochs that are parts of a pass (--steps-per-epoch) are not modelled": job.parted,
        "direct reads (--io direct) are not modelled": job.options.io == DIRECT,
        "streams that begin anew with each epoch (--cache cold-epochs) are not modelled": (
            job.cache == COLD_EPOCHS and row.delivery == STREAM
        ),
    }
    if streaming is not None:
        reasons |= {
            f"ranks get batches as they ask for them (--stream {streaming.mode}), which is not modelled": (
                not streaming.how.known
            ),
            f"streams through files (--stream-engine {streaming.engine}) are not modelled": streaming.engine != SST,
            f"streams that lose steps (--stream-full {streaming.full}) are not modelled": streaming.full != BLOCK,
        }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _cannot_keep(setting: Setting) -> str | None:
    """Why a reader that keeps samples cannot be predicted."""
    if setting.row.delivery != AHEAD:
        return f"a reader that keeps samples and delivers {setting.row.delivery} is not modelled"
    if not setting.plans.whole:
        steps = setting.plans.steps
        return f"what it keeps depends on the whole run, and {steps} steps an epoch are too many to simulate"
    if setting.job.nodes > 1 and not setting.system.network:
        return f"it reads from other nodes, and system {setting.system.name} has no rate of the network"
    return None


def _plans(job: Job, dataset: Dataset, row: Policy, steps: int) -> Plans:
    """The plan of the first measured trial, cut to MOST_READS. DoesNotApplyError if tiers are too small."""
    shape, order, seed = shape_of(job, dataset), order_of(row), job.seed + job.warmup_trials
    places = [job.model_of(rank)[1] for rank in range(job.ranks)]  # models share a plan
    a_step = job.ranks * job.batch * max(1, len(job.view))
    epochs = job.epochs if steps * a_step * job.epochs <= MOST_READS else min(job.epochs, LEAST_EPOCHS)
    kept = max(1, min(steps, MOST_READS // (a_step * epochs)))
    if row.order == REDRAWN:
        sample_view = SampleView(dataset, job.view)
        draw = draw_of(row.rule, job.tiers.sizes_of(sample_view), job.tiers.capacities, shape, job.epochs)
        ids = [[epoch[:kept] for epoch in draw(rank, steps, seed)[:epochs]] for rank in range(job.ranks)]
        return Plans(ids, steps, job.epochs)
    ids = [[order(shape, place, epoch, seed)[:steps][:kept] for epoch in range(epochs)] for place in places]
    return Plans(ids, steps, job.epochs)


def _execute(setting: Setting) -> Executed:
    """Run a reader to its end. DoesNotApplyError if its placement cannot work with these tiers."""
    if setting.row.rule.keeps_samples:
        nodes = layouts(setting)
        if not all_bypass(setting, nodes):
            return execute_placed(setting, nodes)
    return execute_streams(setting) if setting.row.delivery == STREAM else execute_files(setting)


def _figures(setting: Setting) -> dict[str, Any]:
    """Simulate a reader."""
    job, plans, outcome = setting.job, setting.plans, _execute(setting)
    ranks, staged = outcome.ranks, outcome.staged
    factor = plans.steps / plans.simulated_steps
    seconds = []
    for epoch in range(len(plans.ids[0])):
        part = slice(epoch * plans.simulated_steps, (epoch + 1) * plans.simulated_steps)
        before = staged if epoch == 0 else 0.0
        spans = [rank.ends[part].max() - max(rank.begins[part].min(), before) for rank in ranks]
        seconds.append(float(before + factor * max(spans)))
    seconds += [float(np.mean(seconds[1:] or seconds))] * (plans.epochs - len(seconds))
    compute = job.step_seconds * plans.steps * plans.epochs
    elapsed = float(sum(seconds))
    share = len(plans.ids[0]) * plans.simulated_steps / (plans.steps * plans.epochs)
    stall = float(np.mean([rank.stall for rank in ranks])) + staged
    whole = stall + job.step_seconds * ranks[0].steps
    return {
        "epoch_seconds": seconds,
        "first_epoch_seconds": seconds[0],
        "later_epochs_seconds": float(np.mean(seconds[1:])) if len(seconds) > 1 else None,
        "elapsed_seconds": max(elapsed, compute),
        "stall_share": stall / whole if whole else 0.0,
        "bytes": {name: round(size / share) for name, size in outcome.bytes.items()},
        "simulated_share": share,
    }
