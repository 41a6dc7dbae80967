"""From the names of a workload, a variant and a fill to the layout that they mean."""

from msgspec.structs import replace

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.layout import FILLS, RANDOM, Layout, as_declared
from dlio_bench.datagen.manifest import ANEW, NAME, Manifest, description_digest, spec_digest
from dlio_bench.errors import DataError, UsageError, one_of, unknown


def require_layout(dataset: Dataset, layout: Layout) -> None:
    """DataError where fields, shapes, files or splits of the manifest are not of `layout`, or its digest is another's.

    `layout` is the one of the manifest's workload, variant and `tiny`. The digest is evidence of accident, not
    security: whoever edits a manifest can also remake it.
    """
    manifest = dataset.manifest
    if layout.superseded and manifest.generator is not None and manifest.generator < layout.generator:
        raise DataError(f"An earlier version made {dataset.folder}: {layout.superseded} Make it again in a new folder.")
    fault = _fault_of_files(manifest, layout) if manifest.generator is None else _generated_fault(manifest, layout)
    if fault:
        raise DataError(f"{dataset.folder / NAME} does not describe what it says: {fault}. {ANEW}")


def _generated_fault(manifest: Manifest, layout: Layout) -> str | None:
    """What a dataset of ours must be follows from layout, counts and seed, to the names of its files."""
    counts = {split.name: 0 for split in layout.splits}
    for entry in manifest.files:
        if entry.split not in counts:
            return f"{layout.workload} {layout.variant} has no split '{entry.split}'"
        counts[entry.split] += 1
    if (manifest.container, manifest.fields) != (layout.container, layout.fields):
        return _fields_differ(layout, tiny=manifest.tiny)
    made = replace(layout, fill=manifest.fill, generator=manifest.generator or 0, sorted_by=manifest.sorted_by)
    if manifest.spec != spec_digest(made, counts, manifest.seed):
        return "seed, fill, tiny, order or the number of files are not those that it was made with"
    for entry, spec in zip(manifest.files, layout.files(counts), strict=True):
        if (entry.name, entry.first, entry.samples, entry.split) != (spec.name, spec.first, spec.samples, spec.split):
            return f"it names '{entry.name}' ({entry.split}) where '{spec.name}' ({spec.split}) should be"
    return None


def _fault_of_files(manifest: Manifest, layout: Layout) -> str | None:
    """Files of others have any names; what `index` wrote of them has a digest."""
    if manifest.container not in (layout.container, CONTAINERS[layout.container].by_library):
        return f"the container of {layout.workload} {layout.variant} is {layout.container}, not {manifest.container}"
    names = {field.name for field in manifest.fields}
    declared = [field for field in layout.fields if field.name in names or field.name not in layout.optional]
    if len(manifest.fields) != len(declared) or not all(map(as_declared, manifest.fields, declared)):
        return _fields_differ(layout, tiny=manifest.tiny)
    if unknown := {entry.split for entry in manifest.files} - {split.name for split in layout.splits}:
        return f"{layout.workload} {layout.variant} has no split '{sorted(unknown)[0]}'"
    if manifest.spec != description_digest(manifest):
        return "it was changed after `index` wrote it, or an earlier version wrote it, which looked less closely"
    return None


def _fields_differ(layout: Layout, *, tiny: bool) -> str:
    samples = "shrunken samples (tiny)" if tiny else "samples of full size"
    return f"container, fields or shapes are not those of {layout.workload} {layout.variant} with {samples}"


def find_layout(workload: Workload, variant: str | None, *, tiny: bool, fill: str, sorted_by: str = "") -> Layout:
    """The layout of a workload's variant (its default one for None), its samples in the order that `sorted_by` says.

    UsageError, with what there is, for another variant, and for an order that its samples do not have.
    """
    name = variant or workload.default_variant
    if name not in workload.variants:
        raise unknown(f"{workload.name} variant", name, list(workload.variants))
    if fill not in FILLS:
        raise unknown("--fill", fill, FILLS)
    layout = workload.variants[name](tiny, fill)
    if sorted_by and layout.labels is None:
        able = [
            f"{other.name} {variant}"
            for other in registry.WORKLOADS.values()
            for variant, make in other.variants.items()
            if make(tiny, fill).labels is not None
        ]
        raise UsageError(
            f"Samples of {workload.name} {name} cannot be sorted by {sorted_by}: they have no class, or each class has "
            f"a folder. Leave --sorted-by out, or use {one_of(able)}."
        )
    return replace(layout, sorted_by=sorted_by)


def layout_of(dataset: Dataset) -> Layout:
    """The layout that a dataset's manifest names, and that it is held against. DataError where it is of no layout."""
    manifest = dataset.manifest
    fill = RANDOM if manifest.generator is None else manifest.fill
    try:
        workload, order = registry.find(manifest.workload), manifest.sorted_by
        layout = find_layout(workload, manifest.variant, tiny=manifest.tiny, fill=fill, sorted_by=order)
    except UsageError as error:
        raise DataError(f"{dataset.folder / NAME} is of no layout that is known here: {error} {ANEW}") from error
    require_layout(dataset, layout)
    return layout
