"""How much memory this process may use."""

import re
from pathlib import Path

from msgspec import Struct

from dlio_bench.harness.machine.cgroup import memory_left, memory_limit


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
