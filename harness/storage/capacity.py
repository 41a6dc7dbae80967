"""The default sizes of a node's tiers."""

from pathlib import Path

from dlio_bench.free_space import free_bytes
from dlio_bench.harness.ground.defaults import OF_FREE, OF_MEMORY
from dlio_bench.harness.machine.memory import available_bytes


def default_ram(memory: int, nodes: int) -> int:
    """Bytes of the RAM tier of a node with `memory` bytes, one of `nodes` on this machine."""
    return int(min(OF_MEMORY * memory, OF_FREE * available_bytes() / nodes))


def default_disk(folder: Path, nodes: int) -> int:
    """Bytes of the tier in `folder` of a node, one of `nodes` on this machine."""
    return int(OF_FREE * (free_bytes(folder) or 0) / nodes)
