"""What this process may use: memory, and processors' time, of the machine and within its control groups (v1 and v2)."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_UNLIMITED = 1 << 60  # version 1 writes 2^63, rounded down to a page, for no limit


def _folders(controller: str, proc: Path, sys: Path) -> Iterator[Path]:
    """The group folders of this process and their ancestors that may carry `controller`'s files.

    /proc/self/cgroup has lines `id:controllers:path` (cgroups(7)); version 2 is the one with no controllers. In a
    container the path may not exist under the mount, so the root of the hierarchy is always tried.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = sys / "fs" / "cgroup" / (controllers and controller)
        folder = top / path.lstrip("/")
        while True:
            yield folder
            if folder in (top, folder.parent):
                break
            folder = folder.parent


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or the word "max"
        return None


def _memory_limits(proc: Path, sys: Path) -> Iterator[tuple[Path, int]]:
    """Each of this process's groups and their ancestors with a memory limit, and the limit in bytes."""
    for folder in _folders("memory", proc, sys):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (value := _number(folder / name)) is not None and value < _UNLIMITED:
                yield folder, value


def memory_limit(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int | None:
    """The least memory limit in bytes over this process's groups and their ancestors; None when there is none."""
    return min((limit for _, limit in _memory_limits(proc, sys)), default=None)


def memory_left(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int | None:
    """The least number of bytes that these limits leave free for new use; None when there is none.

    The page cache of files counts as free, as in MemAvailable: the kernel gives it up before it refuses memory.
    """
    left = []
    for folder, limit in _memory_limits(proc, sys):
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        left.append(max(0, min(limit, limit - used + _page_cache(folder))))
    return min(left, default=None)


def _page_cache(group: Path) -> int:
    """Bytes that a group and those below it hold as page cache of files; memory that processes share is not in it."""
    try:
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    of_all = "total_" if "total_active_file" in counts else ""  # version 1 counts the group alone, too
    return sum(int(counts.get(f"{of_all}{name}", 0)) for name in ("active_file", "inactive_file"))


def cpu_quota(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> float | None:
    """The least CPU quota in cores (1.5 = one and a half processors' time); None when there is none."""
    quotas = []
    for folder in _folders("cpu", proc, sys):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota, period = str(_number(folder / "cpu.cfs_quota_us")), str(_number(folder / "cpu.cfs_period_us"))
        # -1 (v1) and "max" (v2) stand for no quota, "None" for no such file
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


class Memory(Struct, frozen=True):
    """Bytes: of the machine, free for new use now, and the control group's limit (None: no limit below the machine).

    available: the least of what the machine has free and what the limits of control groups leave; page cache is free.
    """

    total: int
    available: int
    limit: int | None

    @property
    def usable(self) -> int:
        """What a job on this machine can hold at most, page cache included: the least of total and limit."""
        return self.total if self.limit is None else min(self.total, self.limit)


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo (proc_meminfo(5)) in bytes."""
    return {name: int(kib) * 1024 for name, kib in re.findall(r"^([^:\n]+):\s+(\d+) kB$", text, re.MULTILINE)}


def memory() -> Memory:
    """This machine's memory, now."""
    meminfo = parse_meminfo(Path("/proc/meminfo").read_text())
    total, limit = meminfo["MemTotal"], memory_limit()
    free, left = meminfo.get("MemAvailable", meminfo["MemFree"]), memory_left()
    available = free if left is None else min(free, left)
    return Memory(total, available, limit if limit and limit < total else None)


def available_bytes() -> int:
    """Bytes that are free for new use now: `Memory.available`."""
    return memory().available


def memory_bytes() -> int:
    """Bytes that a job on this machine can hold at most: `Memory.usable`."""
    return memory().usable
