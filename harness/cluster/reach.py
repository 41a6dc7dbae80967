"""Whether mpirun will reach the hosts of a job by ssh, asked before it starts: its own words name no cause."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.mpi_library import ask
from dlio_bench.harness.cluster.variables import HOSTFILE, INTERFACE

CONNECT_SECONDS = 10
ANSWER_SECONDS = 30.0  # for a busy host, whose login scripts are slow
AT_ONCE = 32  # connections
NO_FOLDER, NO_PYTHON, NO_INTERFACE = 61, 62, 63  # exit statuses of what a host runs: neither ssh nor a shell has them
# Variables by which MPI libraries are told of another program than ssh
_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")


def require(hosts: Sequence[str]) -> None:
    """EnvironmentFailure for the first host that cannot be reached, or cannot run what this process runs here.

    Asks all hosts at the same time, once in this process; a connection takes some 0.2 s.
    """
    _require(tuple(hosts))


@lru_cache
def _require(hosts: tuple[str, ...]) -> None:
    elsewhere = [name for name in hosts if not _is_here(name)]
    if not elsewhere:
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for failure in pool.map(_why_not, elsewhere):
            if failure is not None:
                raise EnvironmentFailure(failure)


def _is_here(name: str) -> bool:
    """Whether a name in a host file surely is that of this machine, to which mpirun needs no connection."""
    mine = host_name()
    known = [str(address.ip) for address in interfaces.addresses().values()]
    return name in ("localhost", mine, mine.partition(".")[0], *known)


def _why_not(name: str) -> str | None:
    """Why ranks cannot be started on a host, with the fix; None when they can."""
    folder, python, interface = str(Path.cwd()), sys.executable, os.environ.get(INTERFACE)
    script = f"cd {shlex.quote(folder)} || exit {NO_FOLDER}; test -x {shlex.quote(python)} || exit {NO_PYTHON}"
    if interface:
        script += '; set -- $(sed -n "s/^ *\\([^ :]*\\):.*/\\1/p" /proc/net/dev); echo $*'
        script += f'; case " $* " in *" "{shlex.quote(interface)}" "*) ;; *) exit {NO_INTERFACE};; esac'
    answer = ask((*agent(os.environ), name, f"sh -c {shlex.quote(script)}"), os.environ, ANSWER_SECONDS)
    if answer.status == 0:
        return None
    if answer.status == NO_FOLDER:
        return (
            f"Host {name} has no folder '{folder}', in which this command was started. Start it in a folder that all "
            "hosts share, at the same path."
        )
    if answer.status == NO_PYTHON:
        return (
            f"Host {name} has no Python at '{python}'. Install dlio-bench in a folder that all hosts share, or at the "
            "same path on each."
        )
    if answer.status == NO_INTERFACE:
        return str(interfaces.missing(str(interface), name, answer.out.split()))
    words = " / ".join(answer.err.strip().splitlines())[-300:] or (
        f"no answer after {ANSWER_SECONDS:.0f} s" if answer.status is None else f"exit status {answer.status}"
    )
    return (
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
