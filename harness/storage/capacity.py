"""How large a node's buffers and tiers are where nobody gives them a size."""

import os
from pathlib import Path

from dlio_bench.harness.storage.shelf import SHARED_MEMORY

STAGING_BYTES = 256_000_000  # of a rank's staging buffer, where two batches fit into it
OF_MEMORY = 0.4  # of a node's memory, at most, for its RAM tier
OF_FREE = 0.5  # of what is free where a tier lies, at most


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
