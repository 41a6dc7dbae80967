"""The memory of a loader: its staging buffer, and the tiers of a node that keep samples."""

from collections.abc import Mapping
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.ground.defaults import STAGING_BYTES
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.readers.placed.tiers import DISK, RAM, Tiers, default_sizes
from dlio_bench.units import parse_bytes

Size = int | str  # bytes, or with a unit: "2GB"


def in_bytes(name: str, size: Size) -> int:
    """A size in bytes. UsageError."""
    try:
        count = parse_bytes(size) if isinstance(size, str) else int(size)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f'{name} is {size!r}. Give bytes, or a text with a unit, such as "2GB".') from error
    if count < 0:
        raise UsageError(f"{name} is {size}: a size is not below 0.")
    return count


def staging(asked: Size | None, batch_bytes: int) -> int:
    """Bytes of a staging buffer, by default room for at least three batches of `batch_bytes`."""
    return max(STAGING_BYTES, 3 * batch_bytes) if asked is None else in_bytes("staging", asked)


def tiers(
    asked: Mapping[str, Size] | None, local: Path | None, row: Policy, comm: Comm, per_node: int, staging_bytes: int
) -> Tiers:
    """The tiers of every node, the least of what all nodes have. All ranks call it together. UsageError."""
    sizes = {name: in_bytes(f"tiers[{name!r}]", size) for name, size in (asked or {}).items()}
    if unknown := [name for name in sizes if name not in (RAM, DISK)]:
        raise UsageError(f"tiers names {unknown[0]!r}. A node's tiers that keep samples are 'ram' and 'disk'.")
    if not row.rule.keeps_samples:
        if sizes:
            raise UsageError(f"tiers is for readers that keep samples, and {row.name} keeps none. Leave it out.")
        return Tiers()
    here = comm.host_size // per_node if comm.host_size % per_node == 0 else comm.host_size  # nodes on this machine
    memory = memory_bytes() // here
    sizes = default_sizes(memory, staging_bytes * per_node, local, here) | sizes
    everywhere = comm.allgather((sizes[RAM], sizes[DISK]))
    return Tiers(min(ram for ram, _ in everywhere), min(disk for _, disk in everywhere))
