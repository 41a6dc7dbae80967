"""Delivery -> the reader that executes it, inside the reader of a placement if the policy has one.

All readers read files by the same code, so that a gain comes from the policy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.batches import Batch, Ids
from dlio_bench.benchmarks.pipeline import Decode, Pipeline
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.policies import (
    AHEAD,
    LOADERS,
    ON_DEMAND,
    OWN,
    STREAM,
    TF_DATA,
    TORCH,
    WEBDATASET,
    Policy,
    find,
)
from dlio_bench.harness.readers.ahead import Ahead
from dlio_bench.harness.readers.inline import Inline
from dlio_bench.harness.readers.on_demand import OnDemand
from dlio_bench.harness.readers.placed.reader import Placed
from dlio_bench.harness.readers.resources import ALONE, RankContext, Resources
from dlio_bench.harness.readers.session import OpenExtents, Planned, Reader, SampleView, Tally, largest, plan_batches
from dlio_bench.harness.readers.staged import Staged
from dlio_bench.harness.readers.streamed import Streamed
from dlio_bench.harness.readers.tfdata import TfData, shuffle_buffer
from dlio_bench.harness.readers.threads import spare_cores
from dlio_bench.harness.readers.torch_loader import TorchLoader
from dlio_bench.harness.readers.upstream import PublishedPipeline
from dlio_bench.harness.readers.web_loader import WebLoader
from dlio_bench.harness.storage.extents import ExtentReader

READS_AS = "double-buffer"  # the policy by which a producer of streams reads what it publishes


def session_of(
    row: Policy, reader: Reader, plan: Sequence[Planned], tally: Tally
) -> AbstractContextManager[Iterator[Batch | None]]:
    """A session of a reader of this row: by its plan, or with batches as the rank asks for them."""
    if not row.demanded:
        return reader.session(plan, tally)
    assert isinstance(reader, Streamed)
    return reader.session_on_demand(plan, tally)


def _deliver(
    sample_view: SampleView, policy: Policy, resources: Resources, context: RankContext, pipeline: Pipeline | None
) -> Reader:
    """The reader of a policy's delivery, without its placement."""

    def extents() -> ExtentReader:
        return _extents(sample_view, resources, resources.staged)

    if policy.delivery == ON_DEMAND:
        return OnDemand(sample_view, resources.fetcher or extents, resources)
    if policy.delivery == AHEAD:
        cores = spare_cores(context.comm.cores.rank)
        return Ahead(sample_view, resources.fetcher or extents, resources, spare_cores=cores)
    if policy.delivery == STREAM:
        return _streamed_reader(sample_view, resources, context)
    if policy.delivery in LOADERS:
        return _loader(sample_view, policy, resources, extents)
    assert policy.delivery == OWN
    if pipeline is None:
        raise UsageError(
            f"Reader '{policy.name}' is a workload's published pipeline, and workload "
            f"'{sample_view.dataset.manifest.workload}' has none. Use another reader."
        )
    return PublishedPipeline(sample_view, pipeline)


def _loader(sample_view: SampleView, policy: Policy, resources: Resources, extents: OpenExtents) -> Reader:
    """Somebody else's loader."""
    if policy.delivery == TORCH:
        return TorchLoader(sample_view, resources)
    buffer = shuffle_buffer(policy.order)
    if policy.delivery == TF_DATA:
        return TfData(sample_view, extents, resources, buffer=buffer)
    assert policy.delivery == WEBDATASET
    return WebLoader(sample_view, resources, buffer=buffer)


def _streamed_reader(sample_view: SampleView, resources: Resources, context: RankContext) -> Reader:
    if resources.inline_queue:
        reader = _deliver(sample_view, find(READS_AS), resources, context, None)
        return Inline(reader, resources)
    if context.crew is None:
        raise UsageError("Reader 'stream' needs ranks that publish, which `dlio-bench run` starts. Use another reader.")
    return Streamed(sample_view, context.crew, context.comm, resources)


def _extents(
    sample_view: SampleView, resources: Resources, staged: Mapping[int, Path] | None = None, *, decoded: bool = True
) -> ExtentReader:
    decode = sample_view.decode if decoded else None
    return ExtentReader(
        sample_view.dataset,
        sample_view.fields,
        decode,
        check=resources.options.check_crc,
        staged=staged,
        alignment=resources.alignment,
    )


def open_reader(
    policy: Policy,
    sample_view: SampleView,
    resources: Resources,
    context: RankContext = ALONE,
    pipeline: Pipeline | None = None,
) -> Reader:
    """The reader of a policy. `pipeline`: the started pipeline of the workload, for the policy `upstream`.

    UsageError when the resources are too small, or when the placement needs a local tier and the node has none.
    """

    def deliver(changed: Resources) -> Reader:
        return _deliver(sample_view, policy, changed, context, pipeline)

    if policy.rule.keeps_samples:
        return Placed(
            policy.rule,
            sample_view,
            lambda fetcher: deliver(replace(resources, fetcher=fetcher)),
            lambda decoded: _extents(sample_view, resources, decoded=decoded),
            context,
            resources,
        )
    if policy.rule.files is None:
        return deliver(resources)
    copies: dict[int, Path] = {}  # filled by the placement before the delivery opens its first file
    return Staged(deliver(replace(resources, staged=copies)), copies, policy.rule, context, resources)


def view_of(
    policy: Policy, dataset: Dataset, view: tuple[str, ...], decode: Decode | None, pipeline: Pipeline | None = None
) -> SampleView:
    """What a reader delivers of a dataset: a published pipeline decodes as published, all others by `decode`."""
    if policy.delivery == OWN:
        assert pipeline is not None
        decode = pipeline.decode(dataset)
    return SampleView(dataset, view, decode)


def open_planned(
    policy: Policy,
    sample_view: SampleView,
    parts: Iterable[tuple[int, Sequence[Ids]]],
    resources: Resources,
    context: RankContext = ALONE,
    pipeline: Pipeline | None = None,
) -> Reader:
    """The reader of a policy, as `open_reader`, with room for the largest batch of all that it will be asked for.

    parts: (epoch, ids of each batch) of every plan; `resources.batch_bytes` is not looked at.
    """
    most = max((largest(plan_batches(sample_view, [part])) for part in parts), default=0)
    return open_reader(policy, sample_view, replace(resources, batch_bytes=most), context, pipeline)
