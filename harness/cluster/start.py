"""How a job's ranks are started: the requested or the fitting launcher, its command and environment, hosts in reach."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import allocation, interfaces, launch_site, launchers
from dlio_bench.harness.cluster.allocation import hosts_in_file
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.launch_site import LaunchSite
from dlio_bench.harness.cluster.launchers import LaunchRequest
from dlio_bench.harness.cluster.mpi_library import Flavor, pairing_env, run_probe
from dlio_bench.harness.cluster.process import python_command
from dlio_bench.harness.cluster.variables import HOSTFILE, INTERFACE, MPI_PLUGINS
from dlio_bench.signals import interruptible


def single_host_env(flavor: Flavor | None, env: Mapping[str, str]) -> dict[str, str]:
    """Settings for a job on one machine: no search for a fabric, no warnings about what it lacks.

    Open MPI's import falls from 1.1 s to 0.07 s a rank. Components are ruled out rather than named, because the
    shared-memory one is `vader` in 4.x and `sm` in 5.x, and a wrong name ends the run. What the user has set stays; do
    not use it across machines, where it would force TCP.
    """
    if flavor != "openmpi":
        return {}
    settings = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "^ofi,uct,openib",
        "OMPI_MCA_btl_base_warn_component_unused": "0",
        "OMPI_MCA_opal_warn_on_missing_libcuda": "0",
    }
    return {name: value for name, value in settings.items() if name not in env}


# What a shell on another host, started by ssh, would not have.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")  # on the way to an object store
_CARRIED = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {*_PROXIES, *map(str.lower, _PROXIES)}
)
_CARRIED_PREFIXES = (
    *("DLIO_BENCH_", "PYTHON", "MPI4PY_", "HDF5_", "OMP_", "MKL_", "OPENBLAS_", "TF_", "CUDA_", "HOROVOD_", "NCCL_"),
    *("UCX_", "FI_", "AWS_"),
)


def carried_variables(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables of `env` that ranks on hosts reached by ssh need. Open MPI carries its own by itself."""
    return tuple(sorted(name for name in env if name in _CARRIED or name.startswith(_CARRIED_PREFIXES)))


def _interface_env(flavor: Flavor | None, name: str, env: Mapping[str, str]) -> dict[str, str]:
    """Settings by which ranks, and their MPI library, use one network interface. What the user has set stays.

    Open MPI: its "Run-time tuning" (btl_tcp_if_include) and prterun(1); MPICH: "Using the Hydra process manager"; Intel
    MPI Library Developer Reference; fi_tcp(7).
    """
    settings = {INTERFACE: name}
    if flavor == "openmpi":
        settings |= {"OMPI_MCA_btl_tcp_if_include": name, "PRTE_MCA_prte_if_include": name}
    elif flavor in ("mpich", "intel"):
        settings |= {"HYDRA_IFACE" if flavor == "mpich" else "I_MPI_HYDRA_IFACE": name, "FI_TCP_IFACE": name}
    return {name: value for name, value in settings.items() if name == INTERFACE or name not in env}


def launch_env(job: LaunchRequest, site: LaunchSite, env: Mapping[str, str]) -> dict[str, str]:
    """`job.env` and what else its ranks need to load the right MPI library, quickly.

    Give the result to the job (`msgspec.structs.replace(job, env=...)`) and to the launcher's process.
    """
    extra = pairing_env(site.libmpi, env)
    if site.plugins:
        extra[MPI_PLUGINS] = ", ".join(site.plugins)
    if job.hosts == 1:
        extra |= single_host_env(site.mpi_flavor, env)
    elif site.mpi_flavor == "intel" and "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT" not in env:
        # Intel MPI ignores -ppn inside a scheduler's job unless told so (Intel MPI Library Developer Reference).
        extra["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] = "off"
    if job.hosts > 1 and (interface := env.get(INTERFACE)):
        extra |= _interface_env(site.mpi_flavor, interface, env)
    return extra | dict(job.env)


# Whether mpirun will reach the hosts of a job by ssh, and each once, asked before it starts.
#
# Its own words name no cause.

CONNECT_SECONDS = 10
ANSWER_SECONDS = 30.0  # for a busy host, whose login scripts are slow
AT_ONCE = 32  # connections
_MACHINE = "dlio-bench-machine"  # leads the line that tells a host from others
NO_FOLDER, NO_PYTHON, NO_INTERFACE = 61, 62, 63  # exit statuses of what a host runs: neither ssh nor a shell has them
# Variables by which MPI libraries are told of another program than ssh
_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")


@lru_cache
def require_reachable(hosts: tuple[str, ...]) -> None:
    """EnvironmentFailure for the first host that cannot be reached, or cannot run what this process runs here.

    UsageError if two names are one host. Asks all hosts at the same time, once in this process; a connection takes some
    0.2 s.
    """
    here = f"{interfaces.network()}/{host_name()}"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        machines = list(interruptible(lambda: pool.map(partial(_host, here), hosts)))
    names: dict[str, str] = {}
    for name, machine in zip(hosts, machines, strict=True):
        if (other := names.setdefault(machine, name)) != name:
            raise UsageError(
                f"The host file '{os.environ.get(HOSTFILE, '')}' names one host twice: {other} and {name} are the "
                "same. Leave one of them out; 'slots' may say how many ranks the other is for."
            )


def _host(here: str, name: str) -> str:
    return here if _is_here(name) else _machine(name)


def _is_here(name: str) -> bool:
    """Whether a name in a host file surely is that of this machine, to which mpirun needs no connection."""
    mine = host_name()
    known = [str(address.ip) for address in interfaces.addresses().values()]
    return name in ("localhost", mine, mine.partition(".")[0], *known)


def _machine(name: str) -> str:
    """What tells a host from others. EnvironmentFailure, with the fix, if no rank can be started on it."""
    folder, python, interface = str(Path.cwd()), sys.executable, os.environ.get(INTERFACE)
    script = f'echo "{_MACHINE} $(cat /proc/sys/kernel/random/boot_id)/$(stat -Lc %i /proc/self/ns/net)/$(uname -n)"; '
    script += f"cd {shlex.quote(folder)} || exit {NO_FOLDER}; test -x {shlex.quote(python)} || exit {NO_PYTHON}"
    if interface:
        script += '; set -- $(sed -n "s/^ *\\([^ :]*\\):.*/\\1/p" /proc/net/dev); echo $*'
        script += f'; case " $* " in *" "{shlex.quote(interface)}" "*) ;; *) exit {NO_INTERFACE};; esac'
    answer = run_probe((*ssh_agent(os.environ), name, f"sh -c {shlex.quote(script)}"), os.environ, ANSWER_SECONDS)
    if answer.status == 0:
        told = re.search(rf"^{_MACHINE} (\S+)$", answer.out, re.MULTILINE)
        return told[1] if told else name
    if answer.status == NO_FOLDER:
        raise EnvironmentFailure(
            f"Host {name} has no folder '{folder}', in which this command was started. Start it in a folder that all "
            "hosts share, at the same path."
        )
    if answer.status == NO_PYTHON:
        raise EnvironmentFailure(
            f"Host {name} has no Python at '{python}'. Install dlio-bench in a folder that all hosts share, or at the "
            "same path on each."
        )
    if answer.status == NO_INTERFACE:
        raise EnvironmentFailure(str(interfaces.missing(str(interface), name, answer.out.splitlines()[-1].split())))
    words = " / ".join(answer.err.strip().splitlines())[-300:] or (
        f"no answer after {ANSWER_SECONDS:.0f} s" if answer.status is None else f"exit status {answer.status}"
    )
    raise EnvironmentFailure(
        f"Host {name} of the host file {os.environ.get(HOSTFILE, '')} cannot be reached by ssh: {words.rstrip('.')}. "
        f"mpirun needs a connection without a password: make `ssh -o BatchMode=yes {name} true` work from "
        f"{host_name()}, or take the host out of the file."
    )


def ssh_agent(env: Mapping[str, str]) -> tuple[str, ...]:
    """What reaches a host: ssh, or what the MPI library was told to use in its place, with options that forbid to ask.

    A list 'a : b' of Open MPI names alternatives; the first counts.
    """
    told = next((env[name] for name in _AGENTS if env.get(name)), "ssh")
    words = shlex.split(told.split(" : ")[0])
    if Path(words[0]).name == "ssh":
        words += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    return tuple(words)


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
    """The ranks of a job, each of which runs a module of the harness. virtual: one machine plays the nodes.

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
        command = python_command(f"dlio_bench.harness.{self.module}", str(work))
        named = () if self.virtual else tuple(host.name for host in hosts_in_file(os.environ))
        if named:
            allocation.require(allocation.find(os.environ), self.nodes)
        named = named[: self.nodes]
        carried = carried_variables(os.environ) if named else ()
        ranks = launchers.LaunchRequest(
            self.nodes, self.ranks_per_node, command, self.virtual, named_hosts=named, carried=carried
        )
        site = launch_site.detect_site(os.environ)
        name = launchers.choose(os.environ, ranks, site, self.requested)
        if name in ("local", "mpirun"):  # others start no rank on this host, perhaps
            interfaces.require_named()
        if name == "srun":
            site = replace(site, plugins=launch_site.slurm_plugins(site.programs[name], os.environ))
        env = launch_env(ranks, site, os.environ)
        argv = launchers.LAUNCHERS[name](replace(ranks, env=env), site)
        one_host = name == "mpirun" and ranks.hosts == 1 and not named and site.mpi_flavor == "openmpi"
        return Launch(name, argv, env, named, one_host)
