"""What every rank of a comparison is told: one JSON file in its work folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

JOB_FILE, MEASURED = "job.json", "measured.json"

# The contenders, by the names that results carry.
PREFETCH, PREFETCH_CRC, SHUFFLED, NAIVE = "prefetch", "prefetch + crc", "shuffled", "naive"
RAW, PLAIN, H5PY_ITEM, H5PY_DIRECT = "raw preadv", "plain loop", "h5py ds[i]", "h5py read_direct"
TFDATA, TFDATA_INTERLEAVED = "tf.data", "tf.data interleave"


@dataclass(frozen=True)
class Job:
    """One dataset, and who reads it: every contender once a trial, one after the other, by `ranks` ranks."""

    workload: str
    dataset: str
    code_digest: str
    contenders: tuple[str, ...]
    ranks: int
    threads: int
    staging_bytes: int
    batch: int
    trials: int
    seed: int

    def save(self, folder: Path) -> None:
        """Write the job where its ranks look for it."""
        (folder / JOB_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Job":
        """Read the job of a work folder."""
        values: dict[str, Any] = json.loads((folder / JOB_FILE).read_text())
        return cls(**(values | {"contenders": tuple(values["contenders"])}))
