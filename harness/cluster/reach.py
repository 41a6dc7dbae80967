"""Whether mpirun will reach the hosts of a job by ssh, and each once, asked before it starts.

Its own words name no cause.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.mpi_library import ask
from dlio_bench.harness.cluster.variables import HOSTFILE, INTERFACE
from dlio_bench.interruptible import interruptible

CONNECT_SECONDS = 10
ANSWER_SECONDS = 30.0  # for a busy host, whose login scripts are slow
AT_ONCE = 32  # connections
_MACHINE = "dlio-bench-machine"  # leads the line that tells a host from others
NO_FOLDER, NO_PYTHON, NO_INTERFACE = 61, 62, 63  # exit statuses of what a host runs: neither ssh nor a shell has them
# Variables by which MPI libraries are told of another program than ssh
_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")


def require(hosts: Sequence[str]) -> None:
    """EnvironmentFailure for the first host that cannot be reached, or cannot run what this process runs here.

    UsageError if two names are one host. Asks all hosts at the same time, once in this process; a connection takes some
    0.2 s.
    """
    _require(tuple(hosts))


@lru_cache
def _require(hosts: tuple[str, ...]) -> None:
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
    answer = ask((*agent(os.environ), name, f"sh -c {shlex.quote(script)}"), os.environ, ANSWER_SECONDS)
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


def agent(env: Mapping[str, str]) -> tuple[str, ...]:
    """What reaches a host: ssh, or what the MPI library was told to use in its place, with options that forbid to ask.

    A list 'a : b' of Open MPI names alternatives; the first counts.
    """
    told = next((env[name] for name in _AGENTS if env.get(name)), "ssh")
    words = shlex.split(told.split(" : ")[0])
    if Path(words[0]).name == "ssh":
        words += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    return tuple(words)
