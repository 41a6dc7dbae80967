"""All workloads, by name."""

import difflib

from dlio_bench.benchmarks.cdb.workload import CDB
from dlio_bench.benchmarks.cosmoflow.workload import COSMOFLOW
from dlio_bench.benchmarks.hepcnnb.workload import HEPCNNB
from dlio_bench.benchmarks.imagenet.workload import IMAGENET
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.errors import UsageError

WORKLOADS: dict[str, Workload] = {
    "hepcnnb": HEPCNNB,
    "cdb": CDB,
    "cosmoflow": COSMOFLOW,
    "imagenet": IMAGENET,
}


def find(name: str) -> Workload:
    """The workload of that name. UsageError, with the nearest name, when there is none."""
    try:
        return WORKLOADS[name]
    except KeyError:
        near = difflib.get_close_matches(name.lower(), WORKLOADS, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UsageError(f"There is no workload '{name}'.{hint} Known workloads: {', '.join(WORKLOADS)}.") from None
