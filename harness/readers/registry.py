"""Delivery -> the reader that executes it. All share one extent path, so that a gain is the policy's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.readers.ahead import Ahead
from dlio_bench.harness.readers.on_demand import OnDemand
from dlio_bench.harness.readers.session import OpenExtents, Reader
from dlio_bench.harness.storage.extents import ExtentReader


@dataclass(frozen=True)
class Resources:
    """What a reader may use: threads, bytes of staging buffer; `batch_bytes`: its largest batch to come."""

    threads: int
    staging_bytes: int
    batch_bytes: int


def _on_demand(extents: OpenExtents, resources: Resources) -> Reader:
    return OnDemand(extents, batch_bytes=resources.batch_bytes)


def _ahead(extents: OpenExtents, resources: Resources) -> Reader:
    return Ahead(
        extents,
        threads=resources.threads,
        staging_bytes=resources.staging_bytes,
        batch_bytes=resources.batch_bytes,
    )


READERS: dict[str, Callable[[OpenExtents, Resources], Reader]] = {"on demand": _on_demand, "ahead": _ahead}


def open_reader(policy: Policy, dataset: Dataset, view: Sequence[str], resources: Resources) -> Reader:
    """The reader of a policy's row over one dataset and view. UsageError when the resources are too small."""
    return READERS[policy.delivery](lambda: ExtentReader(dataset, view), resources)
