"""Files that name hosts, outside of a scheduler: `node1`, `node1 slots=4` (Open MPI) or `node1:4` (MPICH) on a line."""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.variables import HOSTFILE

# A name or an IPv4 address; the slots, if they are given. Open MPI's max_slots limits what we never ask for.
_LINE = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\s*:\s*(\d+))?(?:\s+slots\s*=\s*(\d+))?(?:\s+max[_-]slots\s*=\s*\d+)?")


class NamedHost(Struct, frozen=True):
    """A host, and how many ranks it is for; None: the file does not say."""

    name: str
    slots: int | None


def read(file: Path) -> tuple[NamedHost, ...]:
    """The hosts in the order of their first lines; a host on several lines has all of their slots. UsageError."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"The host file '{file}' cannot be read: {why}. Give a file with a host on each line."
        ) from error
    slots: dict[str, int | None] = {}
    for number, line in enumerate(lines, 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        given = None if match is None else match[2] or match[3]
        if match is None or (given is not None and int(given) < 1) or (match[2] and match[3]):
            raise UsageError(
                f"The host file '{file}', line {number}: '{content}' names no host. Write a host on each line, and how "
                "many ranks it is for if it matters: 'node1', 'node1 slots=4' or 'node1:4'."
            )
        name = match[1]
        if name in slots:
            slots[name] = (slots[name] or 1) + int(given or 1)
        else:
            slots[name] = None if given is None else int(given)
    if not slots:
        raise UsageError(f"The host file '{file}' names no host. Write one on each line, such as 'node1 slots=4'.")
    return tuple(NamedHost(name, count) for name, count in slots.items())


def given(env: Mapping[str, str]) -> tuple[NamedHost, ...]:
    """The hosts of the file that `--hostfile` or its variable names; none without one. UsageError."""
    file = env.get(HOSTFILE)
    return read(Path(file)) if file else ()
