"""How much space a folder has, and the folder whose files lie in memory."""

import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # shm_overview(7): files in memory, for all processes of a machine


def block_bytes(folder: Path) -> int:
    """Bytes of a block, by whole ones of which files take space; 1 where the folder is not there."""
    try:
        return max(1, os.statvfs(folder).f_frsize)
    except OSError:
        return 1


def free_files(folder: Path) -> int | None:
    """Files and folders that this user can still make; None where nobody tells, or there is no limit."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    return system.f_favail if system.f_files else None


def free_bytes(folder: Path) -> int | None:
    """Bytes free for this user; None where the folder does not exist or its file system does not tell."""
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    return system.f_bavail * system.f_frsize if system.f_blocks else None
