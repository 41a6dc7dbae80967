"""What a result notes of nodes that are not alike: their clocks, and the sizes that they have for the plan."""

from collections.abc import Iterator, Mapping

from dlio_bench.harness.commands.run.asked.job import MEMORY, Job
from dlio_bench.harness.readers.placed.tiers import DISK, RAM
from dlio_bench.reports.document.environment import Host
from dlio_bench.units import format_bytes, format_seconds

CLOCKS_APART = 0.1  # seconds
SIZES = {MEMORY: "memory_bytes", RAM: "ram_tier_bytes", DISK: "disk_tier_bytes"}  # of a NodeRoom
APART = 0.01  # of the largest: what is free in memory is never quite the same


def notes(job: Job, hosts: Mapping[str, Host], first: str) -> Iterator[str]:
    """One sentence for each clock that is wrong and each size that a node lacks. first: the host of rank 0."""
    for name, host in hosts.items():
        ahead = host.clock_offset_seconds or 0.0
        if abs(ahead) > CLOCKS_APART:
            way = "ahead of" if ahead > 0 else "behind"
            yield (
                f"the clock of {name} is {format_seconds(abs(ahead))} {way} that of {first}; no number here compares "
                "times of two hosts"
            )
    for size in job.left_open:
        has = {name: getattr(host.room, SIZES[size]) or 0 for name, host in hosts.items() if host.room is not None}
        least, most = min(has, key=lambda name: has[name]), max(has, key=lambda name: has[name])
        if has[most] - has[least] > APART * has[most]:
            what = "memory" if size == MEMORY else f"the tier '{size}'"
            yield (
                f"{what} of every node is taken as {format_bytes(has[least])}, which {least} has; {most} has "
                f"{format_bytes(has[most])}"
            )
