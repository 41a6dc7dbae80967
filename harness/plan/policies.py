"""The one table of policies: a policy is a row order x placement x delivery. Readers execute rows, nothing else."""

from dataclasses import dataclass
from difflib import get_close_matches

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import ORDERS

NOPFS = "Dryden et al., Clairvoyant Prefetching for Distributed Machine Learning I/O, SC'21"
DEEPIO = "Zhu et al., Entropy-Aware I/O Pipelining for Large-Scale Deep Learning on HPC Systems, MASCOTS'18"
LBANN = "Jacobs et al., Parallelizing Training of Deep Generative Models on Massive Scientific Datasets, CLUSTER'19"
CLIMATE = "Kurth et al., Exascale Deep Learning for Climate Analytics, SC'18"
LOCALITY = "Yang and Cong, Accelerating Data Loading in Deep Neural Network Training, HiPC'19"

# What readers can execute today; a row that needs more is listed but cannot be run.
PLACEMENTS = ("none",)
DELIVERIES = ("on demand", "ahead")


@dataclass(frozen=True)
class Policy:
    """One row. `exactly_once`: every planned sample once an epoch; `order_known`: a sequence, not a multiset."""

    name: str
    order: str
    placement: str
    delivery: str
    source: str
    exactly_once: bool = True
    order_known: bool = True

    @property
    def runnable(self) -> bool:
        """Whether this version can execute the row on files."""
        return self.order in ORDERS and self.placement in PLACEMENTS and self.delivery in DELIVERIES


_ROWS = (
    Policy("naive", "sequential", "none", "on demand", "the plain loop: open, read, train"),
    Policy("shuffled", "global-shuffle", "none", "on demand", f"'Naive' of {NOPFS}"),
    Policy("double-buffer", "global-shuffle", "none", "ahead", f"'StagingBuffer' of {NOPFS}; tf.data prefetch()"),
    Policy("staged", "node-shuffle", "stage-partition", "ahead", CLIMATE),
    Policy("staged-replicated", "global-shuffle", "stage-replicate", "ahead", CLIMATE),
    Policy("tfdata", "buffered-shuffle", "none", "tf.data", "tf.data: shuffle, map, prefetch", order_known=False),
    Policy("clairvoyant", "global-shuffle", "clairvoyant", "ahead", NOPFS),
    Policy("cooperative", "global-shuffle", "cooperative", "ahead", "this project"),
    Policy("lbann-preload", "global-shuffle", "lbann-preload", "ahead", LBANN),
    Policy("lbann-dynamic", "global-shuffle", "lbann-dynamic", "ahead", LBANN),
    Policy("deepio-ordered", "global-shuffle", "deepio-ordered", "ahead", DEEPIO),
    Policy("deepio-opportunistic", "redrawn", "deepio-opportunistic", "ahead", DEEPIO, exactly_once=False),
    Policy("locality-aware", "global-shuffle", "locality-aware", "ahead", LOCALITY),
    Policy("parallel-staging", "redrawn", "parallel-staging", "ahead", f"baseline of {NOPFS}", exactly_once=False),
    Policy("upstream", "its own", "its own", "its own", "each application's published pipeline", order_known=False),
)

POLICIES: dict[str, Policy] = {row.name: row for row in _ROWS}

# `prefetch` is the best runnable `ahead` row.
ALIASES: dict[str, str] = {"prefetch": "double-buffer"}


def find(name: str) -> Policy:
    """The row of this name or alias. UsageError when there is none, or when it cannot be executed yet."""
    policy = POLICIES.get(ALIASES.get(name, name))
    runnable = [*ALIASES, *(row.name for row in _ROWS if row.runnable)]
    if policy is None:
        close = get_close_matches(name, [*POLICIES, *ALIASES], n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UsageError(f"There is no reader '{name}'.{hint} Readers of this version: {', '.join(runnable)}.")
    if not policy.runnable:
        raise UsageError(
            f"Reader '{name}' ({policy.order} x {policy.placement} x {policy.delivery}) has its place in the policy "
            f"table, but this version cannot run it yet. Readers of this version: {', '.join(runnable)}."
        )
    return policy
