"""What every rank of a comparison is told."""

from dataclasses import dataclass

from dlio_bench.harness.cluster.job import SavedJob

MEASURED = "measured.json"

# The contenders, by the names that results carry.
PREFETCH, PREFETCH_CRC, SHUFFLED, NAIVE = "prefetch", "prefetch + crc", "shuffled", "naive"
RAW, PLAIN, H5PY_ITEM, H5PY_DIRECT = "raw preadv", "plain loop", "h5py ds[i]", "h5py read_direct"
TFDATA, TFDATA_INTERLEAVED = "tf.data", "tf.data interleave"


@dataclass(frozen=True)
class Job(SavedJob):
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
