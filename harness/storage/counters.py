"""The kernel's counters around a measurement: bytes this process took from devices, and what the processors did."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

FEWEST_TICKS = 50  # of all processors together: half a second of one, below which a share is noise


class HostCpu(Struct, frozen=True):
    """Jiffies of all processors since boot; take two and subtract. total = busy + iowait + idle + steal, where steal
    went to other virtual machines: not at this machine's disposal, and none of its work.
    """

    busy: int
    iowait: int
    total: int


class CpuShares(Struct, frozen=True):
    """What a machine's processors did in some time, shares 0 to 1."""

    busy: float
    iowait: float


def parse_io(text: str) -> int | None:
    """read_bytes of a /proc/PID/io (proc_pid_io(5)): bytes this process caused to be fetched from storage."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "read_bytes":
            return int(value)
    return None


def parse_stat(text: str) -> HostCpu:
    """The first line of a /proc/stat (proc_stat(5)): user nice system idle iowait irq softirq steal guest guest_nice.

    guest times are part of user and nice already and are not added again. Raises ValueError for another text.
    """
    words = text.split("\n", 1)[0].split()
    if not words or words[0] != "cpu":
        raise ValueError(f"not a /proc/stat: it starts with '{text[:40]}'")
    user, nice, system, idle, iowait, irq, softirq, steal = ([int(word) for word in words[1:9]] + [0] * 8)[:8]
    busy = user + nice + system + irq + softirq
    return HostCpu(busy, iowait, busy + iowait + idle + steal)


def device_bytes(children: Sequence[int] = ()) -> int | None:
    """Bytes that this process (all its threads) and these live children have had read from devices so far.

    None where the kernel hides it. Page-cache hits and tmpfs count nothing; read-ahead counts for its cause.
    """
    try:
        counts = [parse_io(Path(f"/proc/{process}/io").read_text()) for process in ("self", *children)]
    except OSError:
        return None
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def host_cpu() -> HostCpu | None:
    """The whole machine's processor time so far; None where the kernel hides it."""
    try:
        return parse_stat(Path("/proc/stat").read_text())
    except (OSError, ValueError):
        return None


def cpu_shares(spans: Sequence[tuple[HostCpu | None, HostCpu | None]]) -> CpuShares | None:
    """What the whole machine's processors did in some (before, after) spans together.

    None where the kernel hides it, and for spans too short for the kernel's clock ticks.
    """
    busy = iowait = total = 0
    for before, after in spans:
        if before is None or after is None:
            return None
        busy += after.busy - before.busy
        iowait += after.iowait - before.iowait
        total += after.total - before.total
    return CpuShares(busy / total, iowait / total) if total >= FEWEST_TICKS else None
