"""How large a node's tiers are: as was asked for, else a share of what is free. What does not fit is refused.

One rule for the virtual nodes of a machine, for real nodes, and for `dlio_bench.load`.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import gettempdir

from msgspec import Struct

from dlio_bench.errors import BenchError, UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.machine.memory import available_bytes
from dlio_bench.harness.readers.placed.tiers import DISK, RAM, Tiers
from dlio_bench.harness.storage.tier import default_disk, default_ram
from dlio_bench.units import format_bytes

_ADVISED = 2_000_000_000  # bytes in memory that suffice for the tier of an advice


def require_asked(asked: Mapping[str, int], readers: str, *, keep: bool, dashes: str = "--") -> None:
    """UsageError for sizes of unknown tiers, or where the readers do not `keep` samples. dashes: before an option."""
    if unknown := [name for name in asked if name not in (RAM, DISK)]:
        more = f" The staging buffer's size is {dashes}staging." if unknown[0] == "staging" else ""
        raise UsageError(
            f"{dashes}tiers names '{unknown[0]}'. A node's tiers that keep samples are ram and disk.{more}"
        )
    if asked and not keep:
        raise UsageError(
            f"{dashes}tiers is for readers that keep samples, and {readers} keeps none. Leave it out, or use another "
            f"{dashes}reader, such as prefetch."
        )


class Room(Struct, frozen=True):
    """What a node has for tiers. memory: bytes that it may use, of which `staging` are for staging buffers.

    local: the folder on its own storage. The temporary folder, in its place, has no default size: it may lie in memory,
    or be small. nodes: that share this machine.
    """

    memory: int
    staging: int
    local: Path | None
    nodes: int = 1

    @property
    def folder(self) -> Path:
        """Where a tier on node-local storage lies."""
        return self.local or Path(gettempdir())

    @property
    def free(self) -> dict[str, int]:
        """The most bytes that each tier can have."""
        return {
            RAM: max(0, min(self.memory - self.staging, available_bytes() // self.nodes)),
            DISK: (free_bytes(self.folder) or 0) // self.nodes,
        }

    @property
    def default(self) -> dict[str, int]:
        """Bytes of each tier where no size is given."""
        return {
            RAM: min(max(0, self.memory - self.staging), default_ram(self.memory, self.nodes)),
            DISK: 0 if self.local is None else default_disk(self.local, self.nodes),
        }

    def tiers(self, given: Mapping[str, int], where: str, dashes: str = "--") -> Tiers:
        """The tiers by the sizes that are given, else by default. UsageError for what does not fit."""
        require_fitting(given, self.free, where, self.folder, UsageError, dashes)
        sizes = self.default | dict(given)
        return Tiers(sizes[RAM], sizes[DISK])


def require_fitting(
    given: Mapping[str, int],
    free: Mapping[str, int],
    where: str,
    folder: Path,
    kind: type[BenchError],
    dashes: str = "--",
) -> None:
    """An error of this kind for a size that does not fit into a node, `where` that is."""
    for name, size in given.items():
        if size > free[name]:
            place, another = "memory, beside the staging buffers", ""
            if name == DISK:
                place, another = str(folder), f", or give another {dashes}local{'-' if dashes else '_'}tier"
            raise kind(
                f"A tier '{name}' of {format_bytes(size)} does not fit on {where}: {format_bytes(free[name])} are free "
                f"in {place}. Ask for a smaller one with {dashes}tiers {name}=SIZE{another}."
            )


def no_tier(reader: str, where: str) -> str:
    """What to say of a reader that keeps samples on a host, `where` this process runs, which has room for none."""
    free = available_bytes()
    room = "Give one with --tiers ram=1GB" if free > _ADVISED else "Free some of it"
    return (
        f"{reader} keeps samples in a node's tiers, and none has a size on {where}: {format_bytes(free)} of "
        f"its memory are free. {room}, give a folder on its own disk with --local-tier DIR, or use --reader "
        "double-buffer, which keeps nothing."
    )
