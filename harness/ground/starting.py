"""The options of all commands that start ranks, or other commands that do.

They hold for the whole process: `settle` puts them where launchers and child commands look, and the commands do not get
them.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import watch
from dlio_bench.harness.cluster.variables import HOSTFILE, INTERFACE, LAUNCHER_ARGS
from dlio_bench.harness.ground import options as opt
from dlio_bench.units import parse_seconds

if TYPE_CHECKING:
    from dlio_bench.harness.cluster.allocation import Scale


def _check_splits(text: str) -> str:
    """The text, if a shell would split it into words. UsageError."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--launcher-args '{text}': {error}. Quote it as for a shell.") from None
    return text


def _walltime(what: str) -> opt.Option:
    return opt.option(
        f"end within this time, with {what} (default: the time that the scheduler's job has left; 0: as long as it "
        "takes)",
        metavar="TIME",
    )


class Patience(Struct, frozen=True):
    """How long ranks may stand still."""

    timeout: Annotated[
        float,
        opt.option(
            "end the run if a rank neither reads nor computes for this long (default "
            f"{watch.DEFAULT_TIMEOUT}; 0: never)",
            metavar="TIME",
            type=watch.parse_timeout,
        ),
    ] = parse_seconds(watch.DEFAULT_TIMEOUT)


class Hosts(Struct, frozen=True):
    """The hosts of the ranks. None: not given."""

    launcher_args: Annotated[
        str | None,
        opt.option(
            "more options for the launcher, which it gets before the command, in one word: "
            f"--launcher-args '--bind-to core' (default ${LAUNCHER_ARGS})",
            metavar="ARGS",
            type=_check_splits,
        ),
    ] = None
    hostfile: Annotated[
        str | None,
        opt.option(
            "hosts that mpirun reaches by ssh, outside of a scheduler: 'node1', 'node1 slots=4' or 'node1:4' on each "
            f"line; --nodes takes the first ones (default ${HOSTFILE})",
            metavar="FILE",
            type=os.path.abspath,  # for commands that this one starts elsewhere
        ),
    ] = None
    interface: Annotated[
        str | None,
        opt.option(
            "network interface for samples between hosts, and for MPI over TCP (default: for samples the one that "
            f"leads to the first other host, or ${INTERFACE})",
            metavar="NAME",
        ),
    ] = None


class Walltime(Struct, frozen=True):
    """The time of a command that goes on in another job."""

    walltime: Annotated[str | None, _walltime("what is finished and the command that goes on")] = None


class TrialsWalltime(Struct, frozen=True):
    """The time of a command that does not."""

    walltime: Annotated[str | None, _walltime("the trials that had ended")] = None


Groups: TypeAlias = tuple[type[Struct], ...]
COMMANDS: Groups = (Hosts, Walltime)  # of a command that starts others
RANKS: Groups = (Patience, *COMMANDS)
RANKS_OF_TRIALS: Groups = (Patience, Hosts, TrialsWalltime)
VARIABLES: Mapping[str, str] = {"launcher_args": LAUNCHER_ARGS, "hostfile": HOSTFILE, "interface": INTERFACE}


def settle(parsed: argparse.Namespace) -> None:
    """Apply what was given of `Patience` and `Hosts` to this process and to the commands that it starts."""
    watch.allow(getattr(parsed, "timeout", Patience().timeout))
    for name, variable in VARIABLES.items():
        if (value := getattr(parsed, name, None)) is not None:
            os.environ[variable] = value


def allocated_scale(*, nodes: bool, ranks_per_node: bool, workers: int = 1) -> "Scale":
    """The scale that the allocation gives where the user named none (True: named); it is told on stderr. UsageError.

    workers: ranks of a node where the allocation names no tasks and no GPUs.
    """
    from dlio_bench.harness.cluster import allocation

    given = allocation.find(os.environ)
    scale = allocation.default_scale(given, nodes=nodes, ranks_per_node=ranks_per_node, otherwise=workers)
    if scale.origin:
        print(f"scale  {scale.origin}", file=sys.stderr)
    return scale
