"""The search for the largest scale that holds: grow, then bisect."""

from collections.abc import Callable, Sequence

from msgspec import Struct


class Scale(Struct, frozen=True):
    """Emulated accelerators: one rank each, equally many on every node."""

    nodes: int
    ranks_per_node: int

    @property
    def accelerators(self) -> int:
        """All of them."""
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        """'2x4', as in the names of results."""
        return f"{self.nodes}x{self.ranks_per_node}"


def scales(nodes: int, ranks_per_node: int) -> list[Scale]:
    """Every scale that is tried, in rising order: first more ranks on one node, then more nodes of as many ranks."""
    one_node = [Scale(1, ranks) for ranks in range(1, ranks_per_node + 1)]
    return one_node + [Scale(count, ranks_per_node) for count in range(2, nodes + 1)]


def largest(tried: Sequence[Scale], holds: Callable[[Scale], bool]) -> int:
    """How many of the rising scales hold: 0 if the first fails, all if the last holds.

    The positions double until a scale fails, then the gap is halved. `holds` is asked once for a scale at most, and
    the scale behind the answer has failed, unless all hold. Larger scales than a failing one are taken to fail.
    """
    good, bad = 0, 1  # positions from 1: the first `good` scales hold, scale number `bad` is asked next
    while bad <= len(tried) and holds(tried[bad - 1]):
        good, bad = bad, min(2 * bad, len(tried)) if bad < len(tried) else len(tried) + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(tried[middle - 1]) else (good, middle)
    return good
