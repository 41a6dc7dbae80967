"""Options and values that several commands have."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.variables import HOSTFILE, INTERFACE, LAUNCHER_ARGS
from dlio_bench.units import parse_bytes

if TYPE_CHECKING:
    from dlio_bench.harness.cluster.allocation import Scale

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_launcher(options: argparse._ActionsContainer, *, joins: bool = True) -> None:
    """`--launcher`. joins: whether the command can be one of ranks that somebody else has started."""
    none = "; none: somebody else has started this command once for each rank" if joins else ""
    options.add_argument(
        "--launcher",
        metavar="NAME",
        help=f"local, mpirun, srun, jsrun, flux or pals (default: from the environment){none}",
    )


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


def add_cache_dir(options: argparse._ActionsContainer) -> None:
    """`--cache-dir`."""
    options.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="keep generated datasets in this folder (default $DLIO_BENCH_CACHE or ~/.cache/dlio-bench)",
    )


def add_variant(options: argparse._ActionsContainer) -> None:
    """`--variant`."""
    options.add_argument("--variant", metavar="NAME", help="layout variant of the workload (see `dlio-bench list`)")


def values_of(options: argparse.Namespace, *without: str) -> dict[str, Any]:
    """The values of a command's options by name, except those in `without`."""
    return {name: value for name, value in vars(options).items() if name not in ("command", "version", *without)}


def counts(flag: str, text: str) -> tuple[int, ...]:
    """'1,2,4' -> (1, 2, 4), the value of `flag`. UsageError for counts below 1, or given twice."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} '{text}' is not a count. Write a whole number, or several: {flag} 1,2,4.") from None
    if min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise UsageError(f"{flag} '{text}': every count must be at least 1, and be given once.")
    return numbers


def tier_sizes(text: str) -> dict[str, int]:
    """'ram=10GB,disk=40GB' -> bytes by name. UsageError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        if not equals or not name.strip() or name.strip() in sizes:
            raise UsageError(
                f"--tiers '{text}': '{part}' is not NAME=SIZE, or names a tier again. Write ram=10GB,disk=40GB."
            )
        sizes[name.strip()] = parse_bytes(size)
    return sizes
