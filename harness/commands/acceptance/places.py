"""The folders of a plan, the file systems that they are on, and what must hold of both before anything is measured."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.environment import mount_at
from dlio_bench.harness.commands.acceptance.datasets import Source
from dlio_bench.harness.commands.acceptance.plan import Plan
from dlio_bench.harness.machine.mounts import existing
from dlio_bench.reports.acceptance import Place, is_on, mounted
from dlio_bench.reports.document.environment import Host


def places(plan: Plan, base: Path, sources: Iterable[Source]) -> list[Place]:
    """Every folder of the plan: of the datasets, made or given, and of checkpoints. base: the plan's own."""
    folders = [source.folder if source.is_given else source.folder.parent for source in sources]
    folders += [base.absolute() / table.folder for table in plan.checkpoint]
    return [Place(str(folder), mount_at(folder)) for folder in dict.fromkeys(folders)]


def require_places(plan: Plan, wanted: Iterable[Place], sources: Iterable[Source]) -> None:
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
                f"{mounted(place.mount)}. Name a folder on it, mount it, or put file_system right."
            )


def require_measured_there(plan: Plan, measured: Iterable[tuple[str, Mapping[str, Host]]]) -> None:
    """EnvironmentFailure where a host measured on another file system than the plan says. measured: names, hosts."""
    for name, hosts in measured:
        for host, state in hosts.items():
            if not is_on(state.mount, plan.system.file_system):
                raise EnvironmentFailure(
                    f"[system] file_system is '{plan.system.file_system}', but {host} measured {name} on "
                    f"{mounted(state.mount)}. Mount it there, remove the part's folder in results, and go on."
                )
