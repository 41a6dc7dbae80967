"""How a job's ranks are started: the requested or the fitting launcher, and its command."""

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.harness.cluster import allocation, host_file, interfaces, launch_env, launch_site, launchers, reach
from dlio_bench.harness.cluster.process import python_command

JOB = Path("JOB")  # stands for the folder of a job that is planned, and not yet made


class Launch(Struct, frozen=True):
    """How a job's ranks are started.

    `hosts`: those that a host file names for it. one_host: whether this is the only one, and mpirun is Open MPI's.
    """

    launcher: str
    argv: tuple[str, ...]
    env: dict[str, str]
    hosts: tuple[str, ...] = ()
    one_host: bool = False


class Ranks(Struct, frozen=True):
    """The ranks of a job, each of which runs a module of the commands. virtual: one machine plays the nodes.

    requested: their launcher. None: the one that fits.
    """

    module: str
    nodes: int
    ranks_per_node: int
    requested: str | None
    virtual: bool = False

    @property
    def count(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node

    def start(self, work: Path = JOB) -> Launch:
        """How they are started on the job in a folder. UsageError, EnvironmentFailure: before anything is made."""
        command = python_command(f"dlio_bench.harness.commands.{self.module}", str(work))
        named = () if self.virtual else tuple(host.name for host in host_file.given(os.environ))
        if named:
            allocation.require(allocation.find(os.environ), self.nodes)
        named = named[: self.nodes]
        carried = launch_env.carried(os.environ) if named else ()
        ranks = launchers.Job(
            self.nodes, self.ranks_per_node, command, self.virtual, named_hosts=named, carried=carried
        )
        site = launch_site.detect_site(os.environ)
        name = launchers.choose(os.environ, ranks, site, self.requested)
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
