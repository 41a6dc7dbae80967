"""The nodes that a scheduler, or a host file, has given to this command; and until when."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlio_bench.harness.cluster import host_file
from dlio_bench.harness.cluster.mpi_library import ask


@dataclass(frozen=True)
class Allocation:
    """What was given. None: whoever gave it does not say.

    `giver` is slurm, flux, lsf, pbs or hostfile; `ends` is in seconds since the epoch, as time.time counts them.
    """

    giver: str
    nodes: int
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    ends: float | None = None


def find(env: Mapping[str, str]) -> Allocation | None:
    """The allocation that this process is in; None outside of one, or where its nodes cannot be told.

    A file of hosts that the user names comes before a scheduler's. UsageError if it is not one.
    """
    if named := host_file.given(env):
        slots = {host.slots for host in named}
        return Allocation("hostfile", len(named), slots.pop() if len(slots) == 1 else None)
    giver, nodes = _nodes(env)
    return None if nodes is None else Allocation(giver, nodes)


def nodes(env: Mapping[str, str] | None = None) -> int | None:
    """Nodes of the allocation; None outside of one. env: this process's environment, if not given."""
    given = find(os.environ if env is None else env)
    return None if given is None else given.nodes


def _nodes(env: Mapping[str, str]) -> tuple[str, int | None]:
    """Flux: its broker's size, asked of `flux`. Slurm: SLURM_JOB_NUM_NODES. LSF, PBS: names in their host files.

    Under LSF with a launch node (Summit) that node comes first, once, and runs no ranks.
    """
    if "FLUX_URI" in env:
        answer = ask(("flux", "getattr", "size"), env, seconds=5)
        return "flux", int(answer.out) if answer.status == 0 and answer.out.strip().isdigit() else None
    if (count := env.get("SLURM_JOB_NUM_NODES", "")).isdigit():
        return "slurm", int(count)
    giver = "lsf" if "LSB_DJOB_HOSTFILE" in env else "pbs"
    hosts = _host_lines(env.get("LSB_DJOB_HOSTFILE") or env.get("PBS_NODEFILE"))
    names = set(hosts)
    if giver == "lsf" and len(hosts) > len(names) and hosts.count(hosts[0]) == 1:
        names.discard(hosts[0])
    return giver, len(names) or None


def _host_lines(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
    except OSError:
        return []
