"""From the names of a workload, a variant and a fill to the layout that they mean."""

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.holding import require_layout
from dlio_bench.datagen.layout import FILLS, RANDOM, Layout
from dlio_bench.datagen.manifest import ANEW, NAME
from dlio_bench.errors import DataError, UsageError
from dlio_bench.refusals import unknown


def find_layout(workload: Workload, variant: str | None, *, tiny: bool, fill: str) -> Layout:
    """The layout of a workload's variant (its default one for None). UsageError, with what there is, for another."""
    name = variant or workload.default_variant
    if name not in workload.variants:
        raise unknown(f"{workload.name} variant", name, list(workload.variants))
    if fill not in FILLS:
        raise unknown("--fill", fill, FILLS)
    return workload.variants[name](tiny, fill)


def layout_of(dataset: Dataset) -> Layout:
    """The layout that a dataset's manifest names, and that it is held against. DataError where it is of no layout."""
    manifest = dataset.manifest
    fill = RANDOM if manifest.generator is None else manifest.fill
    try:
        layout = find_layout(registry.find(manifest.workload), manifest.variant, tiny=manifest.tiny, fill=fill)
    except UsageError as error:
        raise DataError(f"{dataset.folder / NAME} is of no layout that is known here: {error} {ANEW}") from error
    require_layout(dataset, layout)
    return layout
