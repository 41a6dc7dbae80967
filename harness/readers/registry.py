"""Delivery -> the reader that executes it, with a placement's around it. All share one extent path, so that a gain is
the policy's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.solo import Solo
from dlio_bench.harness.plan.policies import AHEAD, ON_DEMAND, OWN, TF_DATA, Policy
from dlio_bench.harness.readers.ahead import Ahead
from dlio_bench.harness.readers.on_demand import OnDemand
from dlio_bench.harness.readers.placed.reader import Placed
from dlio_bench.harness.readers.placed.rules import filling_threads
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.readers.session import OpenExtents, OpenFetcher, Reader
from dlio_bench.harness.readers.staged import Staged
from dlio_bench.harness.readers.tfdata import TfData, shuffle_buffer
from dlio_bench.harness.readers.threads import spare_cores
from dlio_bench.harness.readers.upstream import Published
from dlio_bench.harness.storage.extents import ExtentReader

NO_TIERS = Tiers()


@dataclass(frozen=True)
class Resources:
    """What a reader may use: threads, bytes of staging buffer; `batch_bytes`: its largest batch to come.

    most_threads: that read ahead where storage keeps them waiting (None: `threads`).
    """

    threads: int
    staging_bytes: int
    batch_bytes: int
    step_seconds: float = 0.0  # that the trainer computes between two batches
    check_crc: bool = False  # compare every delivered field with its CRC32C of generation
    staged: Mapping[int, Path] = field(default_factory=dict)  # file -> its copy on node-local storage
    tiers: Tiers = NO_TIERS  # of a node, for placements of samples
    fetcher: OpenFetcher | None = None  # where samples come from instead of their files
    most_threads: int | None = None


@dataclass(frozen=True)
class RankContext:
    """Where a rank sits: ranks fill node after node. `tier`: the node's folder on node-local storage, if it has one."""

    comm: Comm
    ranks_per_node: int = 1
    tier: Path | None = None

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.comm.size // self.ranks_per_node

    @property
    def node(self) -> int:
        """This rank's node."""
        return self.comm.rank // self.ranks_per_node


ALONE = RankContext(Solo())

Open = Callable[[SampleView, Policy, Resources, RankContext, Pipeline | None], Reader]


def _extents(sample_view: SampleView, resources: Resources) -> OpenExtents:
    return lambda: ExtentReader(
        sample_view.dataset, sample_view.fields, sample_view.decode, check=resources.check_crc, staged=resources.staged
    )


def _fetcher(sample_view: SampleView, resources: Resources) -> OpenFetcher:
    return resources.fetcher or _extents(sample_view, resources)


def _on_demand(
    sample_view: SampleView, policy: Policy, resources: Resources, context: RankContext, pipeline: Pipeline | None
) -> Reader:
    del policy, context, pipeline
    return OnDemand(sample_view, _fetcher(sample_view, resources), batch_bytes=resources.batch_bytes)


def _ahead(
    sample_view: SampleView, policy: Policy, resources: Resources, context: RankContext, pipeline: Pipeline | None
) -> Reader:
    del policy, pipeline
    return Ahead(
        sample_view,
        _fetcher(sample_view, resources),
        threads=resources.most_threads or resources.threads,
        staging_bytes=resources.staging_bytes,
        batch_bytes=resources.batch_bytes,
        step_seconds=resources.step_seconds,
        spare_cores=spare_cores(context.comm.host_size),
    )


def _upstream(
    sample_view: SampleView, policy: Policy, resources: Resources, context: RankContext, pipeline: Pipeline | None
) -> Reader:
    del resources, context
    if pipeline is None:
        raise UsageError(
            f"Reader '{policy.name}' is a workload's published pipeline, and workload "
            f"'{sample_view.dataset.manifest.workload}' has none. Use another reader."
        )
    return Published(sample_view, pipeline)


def _tfdata(
    sample_view: SampleView, policy: Policy, resources: Resources, context: RankContext, pipeline: Pipeline | None
) -> Reader:
    del context, pipeline
    return TfData(
        sample_view,
        _extents(sample_view, resources),
        threads=resources.threads,
        staging_bytes=resources.staging_bytes,
        buffer=shuffle_buffer(policy.order),
        check=resources.check_crc,
    )


def _placed(
    sample_view: SampleView, policy: Policy, resources: Resources, context: RankContext, pipeline: Pipeline | None
) -> Reader:
    def delivery(fetcher: OpenFetcher) -> Reader:
        return READERS[policy.delivery](sample_view, policy, replace(resources, fetcher=fetcher), context, pipeline)

    def extents(decoded: bool) -> ExtentReader:
        return ExtentReader(
            sample_view.dataset, sample_view.fields, sample_view.decode if decoded else None, check=resources.check_crc
        )

    threads = filling_threads(resources.threads)
    return Placed(policy.rule, sample_view, delivery, extents, context, resources.tiers, threads=threads)


READERS: dict[str, Open] = {ON_DEMAND: _on_demand, AHEAD: _ahead, TF_DATA: _tfdata, OWN: _upstream}


def open_reader(
    policy: Policy,
    sample_view: SampleView,
    resources: Resources,
    context: RankContext = ALONE,
    pipeline: Pipeline | None = None,
) -> Reader:
    """The reader of a policy's row. `pipeline`: the workload's own, started, where the row is `upstream`.

    UsageError when the resources are too small, or when the placement needs a local tier and the seat has none.
    """
    if policy.rule.keeps_samples:
        return _placed(sample_view, policy, resources, context, pipeline)
    if policy.rule.files is None:
        return READERS[policy.delivery](sample_view, policy, resources, context, pipeline)
    copies: dict[int, Path] = {}  # filled by the placement before the delivery opens its first file
    delivery = READERS[policy.delivery](sample_view, policy, replace(resources, staged=copies), context, pipeline)
    return Staged(delivery, copies, policy.rule, context, threads=resources.threads)
