"""The axes of a what-if grid: the names and values of `--vary`."""

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.units import parse_bytes

NODES = "nodes"
MOST = 3  # across a heat map, down it, and one map for each value


class Axis(Struct, frozen=True):
    """`values`: node counts, or sizes of a tier in bytes, in the user's order."""

    name: str
    values: tuple[int, ...]


def parse(text: str) -> Axis:
    """'nodes=4,8' -> Axis('nodes', (4, 8)), 'ram=0GB,10GB' -> Axis('ram', (0, 10_000_000_000)). UsageError."""
    name, equals, listed = (part.strip() for part in text.partition("="))
    words = [word.strip() for word in listed.split(",") if word.strip()]
    if not equals or not name:
        raise UsageError(f"--vary '{text}' is not an axis with its values. Write nodes=4,8,16 or ram=0GB,10GB.")
    if not words:
        raise UsageError(f"--vary '{text}' has no values. Write at least one, as in {name}={_example(name)}.")
    values = tuple(_nodes(text, word) if name == NODES else _size(text, word) for word in words)
    for position, value in enumerate(values):
        if value in values[:position]:
            raise UsageError(f"--vary '{text}' says {words[position]} twice. Name each value once.")
    return Axis(name, values)


def require(
    axes: Sequence[Axis], tiers: Collection[str], system: str, nodes: int | None, fixed: Mapping[str, int]
) -> None:
    """UsageError for an axis that the system does not have, that comes twice, or that another option sets, too."""
    known = (NODES, *tiers)
    if len(axes) > MOST:
        raise UsageError(f"--vary is given {len(axes)} times. A grid has at most {MOST} axes: leave some out.")
    seen: set[str] = set()
    for axis in axes:
        if axis.name not in known:
            raise UsageError(
                f"--vary {axis.name} is no axis. System '{system}' has {', '.join(known)}: nodes, and sizes of tiers."
            )
        if axis.name in seen:
            raise UsageError(f"--vary names {axis.name} twice. Put all of its values into one --vary {axis.name}=...")
        seen.add(axis.name)
        if axis.name in fixed:
            raise UsageError(f"--tiers and --vary both set {axis.name}. Leave it out of one of them.")
    if NODES in seen and nodes is not None:
        raise UsageError(f"--nodes {nodes} and --vary nodes both set the nodes. Give one of them.")


def _example(name: str) -> str:
    return "4,8" if name == NODES else "10GB,20GB"


def _nodes(text: str, word: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", word) or int(word) < 1:
        raise UsageError(f"--vary '{text}': '{word}' is no number of nodes. Write a whole number from 1.")
    return int(word)


def _size(text: str, word: str) -> int:
    try:
        return parse_bytes(word)
    except UsageError as error:
        raise UsageError(f"--vary '{text}': {error}") from None
