"""What every rank of a generation is told: one JSON file in its work folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.layout import FILLS, Layout
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.errors import UsageError

JOB_FILE, TIMING_FILE = "job.json", "timing.json"


@dataclass(frozen=True)
class Job:
    """The dataset to be made and the files of it, by number, that are not there yet."""

    workload: str
    variant: str
    tiny: bool
    fill: str
    seed: int
    counts: dict[str, int]  # files of each split
    folder: str
    todo: tuple[int, ...]
    bytes: int  # of them, about
    file_bytes: int
    raw: bool
    ranks: int
    code_digest: str
    spec: str

    def layout(self) -> Layout:
        """The layout that the names mean."""
        return find_layout(registry.find(self.workload), self.variant, tiny=self.tiny, fill=self.fill)

    def spec_here(self) -> str:
        """The dataset's digest as this rank's code would make it."""
        return spec_digest(self.layout(), self.counts, self.seed)

    def save(self, folder: Path) -> None:
        """Write the job where its ranks look for it."""
        (folder / JOB_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Job":
        """Read the job of a work folder."""
        values: dict[str, Any] = json.loads((folder / JOB_FILE).read_text())
        return cls(**(values | {"todo": tuple(values["todo"])}))


def find_layout(workload: Workload, variant: str | None, *, tiny: bool, fill: str) -> Layout:
    """The layout of a workload's variant (its default one for None). UsageError, with what there is, for another."""
    name = variant or workload.default_variant
    if name not in workload.variants:
        raise UsageError(f"{workload.name} has no variant '{name}'. Its variants: {', '.join(workload.variants)}.")
    if fill not in FILLS:
        raise UsageError(f"--fill '{fill}' is not known. Use {' or '.join(FILLS)}.")
    return workload.variants[name](tiny, fill)
