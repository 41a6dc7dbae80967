"""How a job's ranks are started: the requested or the fitting launcher, and its command."""

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.harness.cluster import allocation, host_file, interfaces, launch_env, launch_site, launchers, reach
from dlio_bench.harness.cluster.process import python_command


class Launch(Struct, frozen=True):
    """How a job's ranks are started.

    `hosts`: those that a host file names for it. one_host: whether this is the only one, and mpirun is Open MPI's.
    """

    launcher: str
    argv: tuple[str, ...]
    env: dict[str, str]
    hosts: tuple[str, ...] = ()
    one_host: bool = False


def plan(
    module: str, work: Path, nodes: int, ranks_per_node: int, requested: str | None, *, virtual: bool = False
) -> Launch:
    """How ranks that run `module` of the commands on the job in `work` are started, by the `requested` launcher.

    None: the launcher that fits. virtual: one machine plays the nodes. UsageError, EnvironmentFailure.
    """
    command = python_command(f"dlio_bench.harness.commands.{module}", str(work))
    named = () if virtual else tuple(host.name for host in host_file.given(os.environ))
    if named:
        allocation.require(allocation.find(os.environ), nodes)
    named = named[:nodes]
    carried = launch_env.carried(os.environ) if named else ()
    ranks = launchers.Job(nodes, ranks_per_node, command, virtual, named_hosts=named, carried=carried)
    site = launch_site.detect_site(os.environ)
    name = launchers.choose(os.environ, ranks, site, requested)
    if name in ("local", "mpirun"):  # others start no rank on this host, perhaps
        interfaces.require_named()
    if name == "srun":
        site = replace(site, plugins=launch_site.slurm_plugins(site.programs[name], os.environ))
    env = launch_env.launch_env(ranks, site, os.environ)
    argv = launchers.LAUNCHERS[name](replace(ranks, env=env), site)
    one_host = name == "mpirun" and ranks.hosts == 1 and not named and site.mpi_flavor == "openmpi"
    return Launch(name, argv, env, named, one_host)


def require_hosts(start: Launch) -> None:
    """EnvironmentFailure if mpirun could not start ranks on a host that a host file names. Asks each host once."""
    reach.require(start.hosts)
