"""Ranks that hold parts of one model. `--shard job`: all read the whole dataset in the same order. `--shard pipeline`:
they are the stages of a pipeline, of which the first reads what goes into the network and the last the labels.

So a row needs an order that is known and does not depend on the share of a rank or node.
"""

from collections.abc import Collection, Sequence

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import find_order
from dlio_bench.harness.plan.policies import AHEAD, ON_DEMAND, OWN, REDRAWN, Policy


def require_readable(row: Policy) -> None:
    """UsageError for a row that cannot bring every sample to every rank in one order."""
    why = _why_not(row)
    if why is not None:
        raise UsageError(
            f"--shard job: every rank reads the whole dataset in the same order, and {why}. Use another reader, such "
            "as shuffled, double-buffer or cooperative."
        )


def stage_view(view: Sequence[str], labels: Collection[str], stage: int, stages: int) -> tuple[str, ...]:
    """The fields of `view` that a stage of a pipeline reads: the first all but the labels, the last the labels.

    The stages between read nothing, and a single one reads all: every field is read by one stage.
    """
    first, last = stage == 0, stage == stages - 1
    return tuple(name for name in view if (last if name in labels else first))


def require_pipelined(row: Policy) -> None:
    """UsageError for a row that cannot bring some fields to one rank and others to another."""
    why = _why_not(row)
    if why is None and row.delivery not in (ON_DEMAND, AHEAD):
        why = f"reader '{row.name}' reads through another loader, which delivers whole samples"
    if why is None and row.placement != "none":
        why = f"the placement {row.placement} keeps whole samples, which ranks of a node share"
    if why is not None:
        raise UsageError(
            f"--shard pipeline: the first rank reads samples and the last their labels, in the same order, and {why}. "
            "Use another reader, such as shuffled or double-buffer."
        )


def _why_not(row: Policy) -> str | None:
    if row.delivery == OWN:
        return f"reader '{row.name}' deals files or samples to ranks as its application did"
    if not row.order_known:
        return f"reader '{row.name}' leaves it to its loader in which order samples come"
    if row.order == REDRAWN:
        return f"reader '{row.name}' draws the order of a node from what that node keeps"
    if row.rule.of_one_node:
        return f"the placement {row.placement} gives every node a part of its own"
    if find_order(row.order).of_shares:
        return f"the order {row.order} gives every node or rank a part of its own"
    return None
