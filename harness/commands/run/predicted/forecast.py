"""`run --predict`: loads or measures the machine's description, and writes the prediction before the run starts."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from msgspec import Struct, structs

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.environment import timestamp
from dlio_bench.harness.cluster.system import MB, System, load_system
from dlio_bench.harness.commands.calibration import command as calibration
from dlio_bench.harness.commands.calibration import description
from dlio_bench.harness.commands.calibration.options import Options as Calibration
from dlio_bench.harness.commands.calibration.probes import rate_of
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.predicted import prediction
from dlio_bench.harness.commands.run.predicted.chunks import is_packed
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import convert
from dlio_bench.reports.document.types import Draft, Prediction

SCHEMA = "dlio-bench/prediction/1"
PREDICTION_FILE, SYSTEM_FILE = "prediction.json", "system.toml"
SCRATCH_BYTES = 256_000_000  # that the calibration of a run reads


class Forecast(Struct, frozen=True):
    """The document of prediction.json."""

    document: Mapping[str, Any]

    def beside(self, measured: Draft, job: Job) -> Draft:
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
        _calibrated(options, jobs, dataset, folder, progress) if options.system is None else load_system(options.system)
    )
    if is_packed(dataset) and not options.decode:
        progress.show("measuring how fast samples are unpacked")
        system = structs.replace(system, preprocess=rate_of(SampleView(dataset, jobs[0].view)) / MB)
    notes = list(dict.fromkeys(note for job in jobs for note in prediction.require_known(job, system, dataset.digest)))
    progress.show("predicting")
    rows = [row for job in jobs for row in prediction.predict(job, dataset, system)]
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
        if not options.predict:
            return
        load_system(options.system)
    elif options.predict and folder.exists() and not os.access(folder.parent, os.W_OK):
        raise UsageError(
            f"--predict first measures the file system of {folder} with test files beside it, and {folder.parent} "
            "cannot be written. Calibrate in another folder of this file system (`dlio-bench calibrate`), and name the "
            "description with --system."
        )


def _calibrated(options: Options, jobs: Sequence[Job], dataset: Dataset, folder: Path, progress: Progress) -> System:
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
    measured, declares = calibration.measured(settings, progress), calibration.declared(settings)
    write_whole(folder / SYSTEM_FILE, description.text(declares, measured).encode())
    return description.system_of(declares, measured, str(folder / SYSTEM_FILE))
