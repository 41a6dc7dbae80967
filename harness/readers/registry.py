"""Delivery -> the reader that executes it. All share one extent path, so that a gain is the policy's."""

from collections.abc import Callable, Sequence

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.readers.ahead import Ahead
from dlio_bench.harness.readers.on_demand import OnDemand
from dlio_bench.harness.readers.session import OpenExtents, Reader
from dlio_bench.harness.storage.extents import ExtentReader

READERS: dict[str, Callable[[OpenExtents, int, int], Reader]] = {
    "on demand": lambda extents, _threads, _staging: OnDemand(extents),
    "ahead": lambda extents, threads, staging: Ahead(extents, threads=threads, staging_bytes=staging),
}


def open_reader(policy: Policy, dataset: Dataset, view: Sequence[str], *, threads: int, staging_bytes: int) -> Reader:
    """The reader of a policy's row over one dataset and view."""
    return READERS[policy.delivery](lambda: ExtentReader(dataset, view), threads, staging_bytes)
