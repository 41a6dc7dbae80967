"""All workloads, by name."""

from dlio_bench.benchmarks.cdb.workload import CDB
from dlio_bench.benchmarks.cosmoflow.workload import COSMOFLOW
from dlio_bench.benchmarks.hepcnnb.workload import HEPCNNB
from dlio_bench.benchmarks.imagenet.workload import IMAGENET
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.benchmarks.wsi.workload import WSI
from dlio_bench.errors import unknown

WORKLOADS: dict[str, Workload] = {
    "hepcnnb": HEPCNNB,
    "cdb": CDB,
    "cosmoflow": COSMOFLOW,
    "imagenet": IMAGENET,
    "wsi": WSI,
}


def find(name: str) -> Workload:
    """The workload of that name. UsageError, with the nearest name, when there is none."""
    if name not in WORKLOADS:
        raise unknown("workload", name, list(WORKLOADS))
    return WORKLOADS[name]
