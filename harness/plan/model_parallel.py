"""`--shard job`: ranks that hold parts of one model all read the whole dataset in the same order.

So a row needs an order that is known and does not depend on the share of a rank or node.
"""

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import find_order
from dlio_bench.harness.plan.policies import OWN, REDRAWN, Policy


def require_readable(row: Policy) -> None:
    """UsageError for a row that cannot bring every sample to every rank in one order."""
    why = _why_not(row)
    if why is not None:
        raise UsageError(
            f"--shard job: every rank reads the whole dataset in the same order, and {why}. Use another reader, such "
            "as shuffled, double-buffer or cooperative."
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
