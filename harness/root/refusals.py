"""Refuses a value: says what it is, what the user may have meant, and what is allowed."""

import difflib
from collections.abc import Collection, Sequence

from dlio_bench.errors import UsageError


def unknown(what: str, name: str, known: Collection[str]) -> UsageError:
    """The error for a name that is not `known`. what: an option ('--fill') or a noun ('workload')."""
    opening = f"{what} '{name}' is not known" if what.startswith("-") else f"There is no {what} '{name}'"
    return UsageError(f"{opening}.{did_you_mean(name, known)} Use {one_of([*known])}.")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A question that starts with a blank, or nothing if no known name is similar. Ignores case."""
    nearest = difflib.get_close_matches(name.lower(), {word.lower(): word for word in known}, n=1)
    return next((f" Did you mean '{word}'?" for word in known if word.lower() in nearest), "")


def one_of(words: Sequence[str]) -> str:
    """'a', 'a or b', 'a, b or c'."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def require_at_least(lowest: int, **values: float | None) -> None:
    """UsageError for an option below `lowest`; by keyword: ranks_per_node is --ranks-per-node. None: not given."""
    for name, value in values.items():
        if value is not None and value < lowest:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {value} is too small: it must be at least {lowest}.")
