"""How large a node's tiers are where nobody gives them a size."""

import os
from pathlib import Path

from dlio_bench.harness.ground.defaults import OF_FREE, OF_MEMORY
from dlio_bench.harness.storage.tier_files import SHARED_MEMORY


def default_ram(memory: int, nodes: int) -> int:
    """Bytes of the RAM tier of a node with `memory` bytes, one of `nodes` on this machine."""
    return int(min(OF_MEMORY * memory, OF_FREE * (free_bytes(SHARED_MEMORY) or 0) / nodes))


def default_disk(folder: Path, nodes: int) -> int:
    """Bytes of the tier in `folder` of a node, one of `nodes` on this machine."""
    return int(OF_FREE * (free_bytes(folder) or 0) / nodes)


def free_bytes(folder: Path) -> int | None:
    """Bytes free for this user; None where the folder is not there or its file system does not tell."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    return system.f_bavail * system.f_frsize if system.f_blocks else None
