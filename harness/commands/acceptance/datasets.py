"""What a campaign reads: how large each dataset must be, where it lies and on which file system, what is there."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from msgspec import Meta, Struct

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen.dataset import changed_files, open_dataset
from dlio_bench.datagen.layout import VALIDATION, Layout
from dlio_bench.datagen.manifest import NAME, spec_digest
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster.environment import mount_at
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan, Run, errors_at
from dlio_bench.harness.commands.generation.amount import sizes, smallest_with
from dlio_bench.harness.commands.run.asked.data import SEED
from dlio_bench.harness.machine.mounts import existing
from dlio_bench.reports.acceptance import Place, describe_mount, is_on
from dlio_bench.units import format_bytes

FOLDER = "acceptance"  # of the datasets, in the folder that keeps datasets


class Site(Struct, frozen=True):
    """Where a campaign began. memory_per_node: bytes, as the plan says, or as this machine has and others are taken to;
    real_nodes: of a scheduler's allocation, while virtual ones share a machine; cache: of datasets.
    """

    memory_per_node: Annotated[int, Meta(ge=1)]
    real_nodes: bool
    cache: str

    def memory_of(self, nodes: int, plan: CampaignPlan) -> int:
        """Bytes of all hosts of a run together; a memory that the plan declares is that of each virtual node too."""
        return self.memory_per_node * (nodes if plan.memory is not None or self.real_nodes else 1)


class RunDataset(Struct, frozen=True):
    """A dataset that runs read. Bytes and samples are of its training split, which is what an epoch reads.

    needed: bytes that the plan's rules ask for. files: of each split, to be made; empty where the plan names the data.
    validation_samples: of the validation split; 0 without one.
    """

    name: str
    layout: Layout
    folder: Path
    needed: int
    bytes: int
    samples: int
    files: dict[str, int]
    validation_samples: int = 0

    @property
    def is_given(self) -> bool:
        """Whether the user brought the dataset."""
        return not self.files

    @property
    def whole_bytes(self) -> int:
        """Bytes of all splits of a dataset that is made."""
        return sum(size.stored_bytes for size in sizes(self.layout, self.files))

    def is_ready(self) -> bool:
        """Whether every file is there in its full size. BenchError for a dataset that cannot be read."""
        if not (self.folder / NAME).exists():
            return False
        dataset = open_dataset(self.folder)
        same = self.is_given or dataset.manifest.spec == spec_digest(self.layout, self.files, SEED)
        return same and not changed_files(dataset)

    def missing_bytes(self) -> int:
        """Bytes that are still to be written, at most."""
        if self.is_given or self.is_ready():
            return 0
        there = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return max(0, self.whole_bytes - there)


def sources(plan: CampaignPlan, base: Path, site: Site) -> dict[int, RunDataset]:
    """The source of each table of the plan, by the table's number.

    base: the plan's folder, which paths in it start from. Tables of one workload share a dataset that is large enough
    for all of them. UsageError for an unknown workload, or a rule that its data cannot meet; DataError for data that
    are not whole.
    """
    wanted: dict[tuple[object, ...], list[int]] = {}
    for number, run in enumerate(plan.run):
        wanted.setdefault((run.workload, run.variant, run.tiny, run.data), []).append(number)
    names: set[str] = set()
    by_table: dict[int, RunDataset] = {}
    for numbers in wanted.values():
        runs = [plan.run[number] for number in numbers]
        layout = _layout(plan, numbers[0])
        needed = max(_needed_bytes(plan, run, layout, site) for run in runs)
        name = next(name for name in _names(layout) if name not in names)
        names.add(name)
        if runs[0].data is not None:
            with errors_at(f"run[{numbers[0]}].data"):
                source = _given_source(name, layout, base / runs[0].data, needed)
        else:
            folder = Path(site.cache) / FOLDER if plan.dataset.folder is None else base / plan.dataset.folder
            source = _new_source(name, layout, folder.absolute(), needed, plan)
        by_table |= dict.fromkeys(numbers, source)
    return by_table


def require_space(made: list[RunDataset]) -> None:
    """EnvironmentFailure, with the bytes that are missing, where the file systems do not hold what is to be made."""
    by_system: dict[int, tuple[Path, int]] = {}
    for source in made:
        place = existing(source.folder)
        _, before = by_system.get(place.stat().st_dev, (place, 0))
        by_system[place.stat().st_dev] = place, before + source.missing_bytes()
    for place, needed in by_system.values():
        free = free_bytes(place)
        if free is not None and free < needed:
            raise EnvironmentFailure(
                f"The datasets need {format_bytes(needed)} in {place}, which has {format_bytes(free)} free: "
                f"{needed - free} bytes ({format_bytes(needed - free)}) are missing. Free space there, name another "
                "place in [dataset] folder, or ask for less with [dataset] times_memory or memory_per_node."
            )


def places(plan: CampaignPlan, base: Path, sources: Iterable[RunDataset]) -> list[Place]:
    """Every folder of the plan: of the datasets, made or given, and of checkpoints. base: the plan's own."""
    folders = [source.folder if source.is_given else source.folder.parent for source in sources]
    folders += [base.absolute() / table.folder for table in plan.checkpoint]
    return [Place(str(folder), mount_at(folder)) for folder in dict.fromkeys(folders)]


def require_places(plan: CampaignPlan, wanted: Iterable[Place], sources: Iterable[RunDataset]) -> None:
    """UsageError for a folder that is not there, may not be written, or is on another file system than the plan says.

    A folder that a plan names is never made: where a file system is not mounted it would lie on another.
    """
    for source in sources:
        folder = source.folder.parent
        if source.is_given or source.is_ready():
            continue
        if plan.dataset.folder is not None and not folder.is_dir():
            raise UsageError(
                f"[dataset] folder: '{folder}' is no folder. Make it on the file system that is to be accepted: it is "
                "not made for you, as it would lie elsewhere where that is not mounted."
            )
        try:
            with TemporaryFile(dir=existing(folder)):
                pass
        except OSError as error:
            raise UsageError(
                f"[dataset] folder: nothing can be written into '{existing(folder)}': {error.strerror}. Name another."
            ) from None
    for place in wanted:
        if not is_on(place.mount, plan.system.file_system):
            raise UsageError(
                f"[system] file_system is '{plan.system.file_system}', but {place.folder} is on "
                f"{describe_mount(place.mount)}. Name a folder on it, mount it, or put file_system right."
            )


def _layout(plan: CampaignPlan, number: int) -> Layout:
    run = plan.run[number]
    with errors_at(f"run[{number}].workload"):
        workload = registry.find(run.workload)
    with errors_at(f"run[{number}].variant"):
        return find_layout(workload, run.variant, tiny=run.tiny, fill=plan.dataset.fill)


def _names(layout: Layout) -> Iterator[str]:
    first = f"{layout.workload}-{layout.variant}{'-tiny' if layout.tiny else ''}"
    yield first
    number = 2
    while True:
        yield f"{first}-{number}"
        number += 1


def _needed_bytes(plan: CampaignPlan, run: Run, layout: Layout, site: Site) -> int:
    """Bytes of training data: so many times the memory of all hosts, and enough samples for the steps.

    MLPerf Storage's rule (Submission_guidelines.md, v2.0, "datasize"): samples of at least 500 steps, and of five times
    the hosts' memory.
    """
    scales = plan.scales(run)
    ranks = max(nodes * per_node for nodes, per_node in scales)
    of_memory = plan.dataset.times_memory * site.memory_of(max(nodes for nodes, _ in scales), plan)
    batch = run.batch or registry.find(run.workload).of(run.variant).batch
    samples = max((plan.dataset.steps or 1) * batch * ranks, ranks)
    return math.ceil(max(of_memory, samples * layout.sample_bytes))


def _new_source(name: str, layout: Layout, folder: Path, needed: int, plan: CampaignPlan) -> RunDataset:
    with errors_at("[dataset]"):
        files = smallest_with(layout, needed)
    published = {split.name: split.full_files for split in layout.splits}
    if plan.dataset.at_most_published and sum(files.values()) > sum(published.values()):
        files = published
    training, *held_out = sizes(layout, files)
    where = folder / f"{name}-{plan.dataset.fill}-{sum(files.values())}"
    validation = sum(split.samples for split in held_out if split.name == VALIDATION)
    return RunDataset(name, layout, where, needed, training.stored_bytes, training.samples, files, validation)


def _given_source(name: str, layout: Layout, folder: Path, needed: int) -> RunDataset:
    dataset = open_dataset(folder)
    manifest = dataset.manifest
    if (manifest.workload, manifest.variant, manifest.tiny) != (layout.workload, layout.variant, layout.tiny):
        raise UsageError(
            f"'{folder}' holds {manifest.workload} {manifest.variant}, but the plan's run is of "
            f"{layout.workload} {layout.variant}. Name the folder of a dataset that fits."
        )
    if bad := changed_files(dataset):
        raise DataError(f"The dataset in {folder} is incomplete: {bad[0]}. Restore the files, or generate it again.")
    stored = sum(file.bytes for file in dataset.training_files)
    if stored < needed:
        raise UsageError(
            f"'{folder}': the rules of [dataset] ask for {format_bytes(needed)} of training data, and it has "
            f"{format_bytes(stored)}. Name a larger dataset, ask for fewer nodes, or lower times_memory or steps."
        )
    part = dataset.part(VALIDATION)
    validation = 0 if part is None else len(part.samples)
    return RunDataset(name, layout, folder.resolve(), needed, stored, dataset.training_samples, {}, validation)
