"""What the folder of an acceptance says of itself beside its results: whose system it is, and by which limits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from dlio_bench.reports.document.environment import Mount
from dlio_bench.reports.document.typed import convert, load_json
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.run.machines import abbreviate, describe_machines
from dlio_bench.reports.view.formatting import NOTHING, format_share, number
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable

CAMPAIGN = "campaign.json"


class System(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose system is accepted: what nobody can measure. file_system: the type that every folder must be on."""

    name: Annotated[str, Meta(min_length=1)]
    contact: str = ""
    description: str = ""
    file_system: str = ""


class Place(Struct, frozen=True):
    """A folder that was read or written, and its file system as the machine saw it on which the command was given."""

    folder: str
    mount: Mount | None

    def __str__(self) -> str:
        return printable(f"{self.folder}: {describe_mount(self.mount)}")


class Applied(Struct, frozen=True):
    """Limits that results were judged by, and since when."""

    at: str
    sha256: str


class Campaign(Struct, frozen=True, kw_only=True):
    """An acceptance. limits: those in force at the first measurement, then every change of them."""

    system: System = System(name="not named")
    places: list[Place] = []
    limits: list[Applied] = []

    @property
    def changes(self) -> list[str]:
        """A sentence for each change of the limits after the first measurement."""
        return [
            f"The limits were changed on {new.at}, after the first measurement: sha256:{old.sha256} became "
            f"sha256:{new.sha256}."
            for old, new in zip(self.limits, self.limits[1:], strict=False)
        ]


def of_folder(folder: Path) -> Campaign | None:
    """The acceptance whose folder this is; None where it is of none."""
    if not (folder / CAMPAIGN).is_file():
        return None
    try:
        return convert(load_json(folder / CAMPAIGN, "Name another folder"), Campaign)
    except ValueError:
        return None


def describe_mount(mount: Mount | None) -> str:
    """'lustre, mounted at /scratch from mds@tcp:/scratch': which file system it is."""
    return f"{mount.type}, mounted at {mount.point} from {mount.source}" if mount else "an unknown file system"


def is_on(mount: Mount | None, file_system: str) -> bool:
    """Whether a mount is of the file system that was named, such as nfs of type nfs4; True where none was named."""
    kind = "" if mount is None else mount.type.removeprefix("fuse.")
    return not file_system or kind == file_system or (file_system, kind) == ("nfs", "nfs4")


def campaign_facts(campaign: Campaign, results: Sequence[Result]) -> dict[str, str]:
    """What was accepted, where and when, by the name of each fact."""
    hosts = {name: host for result in results for name, host in result.environment.hosts.items()}
    memory = sum(host.memory_bytes or 0 for host in hosts.values())
    data: dict[str, None] = {}
    for result in results:
        stored = result.dataset.stored_bytes
        share = f", {stored / memory:.2g} times the memory of all hosts" if memory else ""
        data[f"{result.workload.name} {result.dataset.variant}: {format_bytes(stored)}{share}"] = None
    created = sorted(result.created[:16].replace("T", " ") for result in results)
    versions = ", ".join(sorted({result.version for result in results}))
    return {
        "file system": "; ".join(map(str, campaign.places)) or NOTHING,
        "hosts": abbreviate(sorted(hosts)),
        **describe_machines(hosts),
        "data read": "; ".join(data),
        "measured": f"{created[0]} to {created[-1]} (UTC), with dlio-bench {versions}",
    }


def ceilings(results: Sequence[Result]) -> dict[str, str]:
    """What each result read of what its storage gives, by its digest; of results whose storage was measured."""
    return {
        result.digest: f"{number(result.metrics['pfs_bandwidth'])} from the file system: "
        f"{format_share(result.value('pfs_bandwidth') / most)} of {format_bytes(most)}/s that it gives to any reader"
        for result in results
        if result.environment.ceiling and (most := result.environment.ceiling.bytes_per_second)
    }
