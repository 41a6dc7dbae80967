"""Options and values that several commands have."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.variables import HOSTFILE, INTERFACE, LAUNCHER_ARGS

if TYPE_CHECKING:
    from dlio_bench.harness.cluster.allocation import Scale


# Options about the hosts, by their names in a Namespace, and the variables through which launchers read them: a command
# that starts other commands passes them on with its environment.
HOSTS: Mapping[str, str] = {"launcher_args": LAUNCHER_ARGS, "hostfile": HOSTFILE, "interface": INTERFACE}


def add_hosts(options: argparse._ActionsContainer) -> None:
    """The options about the hosts, for every command that starts ranks. See `settle`."""
    options.add_argument(
        "--launcher-args",
        type=_words,
        metavar="ARGS",
        help="more options for the launcher, which it gets before the command, in one word: "
        f"--launcher-args '--bind-to core' (default ${LAUNCHER_ARGS})",
    )
    options.add_argument(
        "--hostfile",
        type=os.path.abspath,  # for commands that this one starts elsewhere
        metavar="FILE",
        help="hosts that mpirun reaches by ssh, outside of a scheduler: 'node1', 'node1 slots=4' or 'node1:4' on each "
        f"line; --nodes takes the first ones (default ${HOSTFILE})",
    )
    options.add_argument(
        "--interface",
        metavar="NAME",
        help="network interface for samples between hosts, and for MPI over TCP (default: for samples the one that "
        f"leads to the first other host, or ${INTERFACE})",
    )


def settle(options: argparse.Namespace) -> None:
    """Move the options about the hosts from a Namespace to this process's environment, which child commands share."""
    for name, variable in HOSTS.items():
        value = vars(options).pop(name, None)
        if value is not None:
            os.environ[variable] = str(value)


def joined(argv: Sequence[str]) -> list[str]:
    """argv with `--launcher-args VALUE` as one word: argparse takes a value that begins with a hyphen for an option.

    The same of `--fraction -1%`, so that the error tells of its value.
    """
    words = list(argv)
    for place, word in enumerate(words[:-1]):
        if word == "--launcher-args" or (word == "--fraction" and words[place + 1].endswith("%")):
            return [*words[:place], f"{word}={words[place + 1]}", *words[place + 2 :]]
    return words


def _words(text: str) -> str:
    """The text, if a shell would split it into words. UsageError."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--launcher-args '{text}': {error}. Quote it as for a shell.") from None
    return text


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
