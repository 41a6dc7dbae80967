"""Options and values that several commands have."""

import argparse
from pathlib import Path
from typing import Any, TypeAlias

from dlio_bench.errors import UsageError
from dlio_bench.units import parse_bytes

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_launcher(options: argparse._ActionsContainer) -> None:
    """`--launcher`."""
    options.add_argument(
        "--launcher", metavar="NAME", help="local, mpirun, srun, jsrun, flux or pals (default: from the environment)"
    )


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
