"""How much space a folder has, and the folder whose files lie in memory."""

import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # shm_overview(7): files in memory, for all processes of a machine


def free_bytes(folder: Path) -> int | None:
    """Bytes free for this user; None where the folder does not exist or its file system does not tell."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    return system.f_bavail * system.f_frsize if system.f_blocks else None
