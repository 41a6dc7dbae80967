"""Predict policies for a case: one row each, on the engine that fits."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.plan.placement.rule import DoesNotApplyError, NodeContents, Placement
from dlio_bench.harness.plan.policies import POLICIES, Policy
from dlio_bench.harness.simulator import conserved, stepwise
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.model import CopyTimes, Fill, Outcome, all_copies, fill, trace
from dlio_bench.reports.simulation.types import Row

CONSERVED, WORST, PUBLISHED = ("conserved", "worst", "published")
LOWER_BOUND = "lower-bound"
Filled: TypeAlias = tuple[float, float]  # MB read for tiers beside what steps read: from other nodes, from the PFS


_PUBLISHED_NAMES = {row.published: row for row in POLICIES.values() if row.published is not None}


def names(pfs_clients: str) -> tuple[str, ...]:
    """The policies that can be predicted, with the names of `run` or those of the published simulator."""
    if pfs_clients == PUBLISHED:
        return (LOWER_BOUND, *_PUBLISHED_NAMES)
    return (LOWER_BOUND, *(row.name for row in POLICIES.values() if row.simulated))


def policy_of(name: str) -> Policy:
    """The row of a name in `names`. KeyError."""
    return _PUBLISHED_NAMES.get(name) or POLICIES[name]


def lower_bound(case: Case) -> float:
    """Seconds of compute alone: the sum over steps of the slowest node's batch."""
    total = case.costs.sample * case.batch * case.steps * case.epochs
    if case.costs.compute:  # else all batches take the same time
        for number in range(case.epochs):
            total += float(case.megabytes[case.epoch(number)].sum(axis=2).max(axis=1).sum()) * case.costs.compute
    return total


def predict(case: Case, policies: Sequence[str], pfs_clients: str = CONSERVED) -> Iterator[Row]:
    """A prediction for each policy: `policies` are of `names`."""
    bound = lower_bound(case)
    return (_predict_policy(case, name, pfs_clients, bound) for name in policies)


def bound_row(bound: float) -> Row:
    """The row of the lower bound."""
    return Row(
        policy=LOWER_BOUND, seconds=bound, stall_seconds=0.0, bytes={}, over_bound=0.0, pfs_in_steps=False, reason=None
    )


def row_without(name: str, reason: str) -> Row:
    """The row of a policy that does not apply."""
    return Row(
        policy=name, seconds=None, stall_seconds=None, bytes={}, over_bound=None, pfs_in_steps=False, reason=reason
    )


def _predict_policy(case: Case, name: str, pfs_clients: str, bound: float) -> Row:
    if name == LOWER_BOUND:
        return bound_row(bound)
    try:
        outcome, filled, before = run(case, policy_of(name), pfs_clients)
    except DoesNotApplyError as error:
        return row_without(name, str(error))
    return row(case, name, outcome, filled, before, bound)


def row(case: Case, name: str, outcome: Outcome, filled: Filled, before: float, bound: float) -> Row:
    """The outcome of an engine as a row. `before`: seconds of the fills before the first step.

    bytes: read by all nodes, with fills and double reads. stall_seconds: with fills before the first step.
    pfs_in_steps: more than a thousandth of the bytes that steps read come from the PFS.
    """
    names = [*(tier.name for tier in case.system.tiers[1:]), "remote", "pfs"]
    read = outcome.read.sum(axis=0)
    read[-2:] += filled
    return Row(
        policy=name,
        seconds=outcome.seconds,
        stall_seconds=before + float(outcome.stalls.mean()),
        bytes={tier: round(megabytes * MB) for tier, megabytes in zip(names, read, strict=True)},
        over_bound=outcome.seconds / bound - 1,
        pfs_in_steps=bool(outcome.read[:, -1].sum() > 1e-3 * outcome.read.sum()),
        reason=None,
    )


def run(case: Case, policy: Policy, pfs_clients: str) -> tuple[Outcome, Filled, float]:
    """Simulate all nodes: the engine's outcome, what filled the tiers, and the seconds of fills before the first step.

    DoesNotApplyError if the policy does not apply.
    """
    if pfs_clients == CONSERVED:
        return _run_conserved(case, policy)
    rule, behaviour = policy.rule, policy.behaviour
    sequences, tiers = case.sequences, len(case.capacities)
    fills: list[Fill] = []
    copies: list[CopyTimes] | list[None] = [None] * case.nodes
    planned: list[list[float]] = []
    before = 0.0
    if rule.keep is not None:
        keeps, blocks = _place(case, policy, pfs_clients)
        fills = [fill(node, case.megabytes, case.costs) for node in keeps]
        if blocks:
            fills = [stepwise.behind_first_block(*node) for node in zip(fills, blocks, strict=True)]
            planned = stepwise.first_fetches(fills, blocks)
        if rule.first:
            before = fills[-1].end if pfs_clients == PUBLISHED else max(node.end for node in fills)
        copies = all_copies([node.at_once() for node in fills] if rule.first else fills, len(case.sizes))
        sequences = _sequences(case, rule, keeps)
    traces = [trace(ids, case.megabytes, has, tiers) for ids, has in zip(sequences, copies, strict=True)]
    clients: stepwise.LoggedClients | None = None
    if pfs_clients == PUBLISHED:
        traces = [stepwise.without_room_for_old(*node) for node in zip(traces, sequences, strict=True)]
        clients = stepwise.LoggedClients(case.nodes, planned)
    outcome = stepwise.simulate(traces, case.batch, behaviour, case.costs, before, clients)
    return outcome, filled_by(fills), before


def filled_by(fills: Sequence[Fill]) -> Filled:
    """MB that fills took from other nodes and from the PFS."""
    return sum(node_fill.read_remote for node_fill in fills), sum(node_fill.read_pfs for node_fill in fills)


def _run_conserved(case: Case, policy: Policy) -> tuple[Outcome, Filled, float]:
    rule, keeps = policy.rule, list[NodeContents]()
    if rule.keep is not None:
        keeps = rule.keep(case.sequences, case.sizes, useful(case, rule), case.per_epoch)
    sequences = _sequences(case, rule, keeps)
    return conserved.simulate(
        sequences, keeps, case.megabytes, case.batch, policy.behaviour, case.costs, first=rule.first
    )


def useful(case: Case, rule: Placement) -> tuple[int, ...]:
    """Bytes of each tier that a reader uses: if it may choose, none of a tier that is slower than the PFS."""
    if rule.first or rule.behaviour.waits:
        return case.capacities
    tiers = zip(case.capacities, case.costs.local, strict=True)
    return tuple(capacity if cost < case.costs.worst_pfs else 0 for capacity, cost in tiers)


def _sequences(case: Case, rule: Placement, keeps: Sequence[NodeContents]) -> list[npt.NDArray[np.int32]]:
    """What every node reads, int32 [accesses]."""
    if rule.redraw is None:
        return case.sequences
    count = case.per_epoch * case.epochs
    return [rule.redraw(keeps, node, count, case.per_epoch, case.seed).astype(np.int32) for node in range(case.nodes)]


def _place(case: Case, policy: Policy, pfs_clients: str) -> tuple[list[NodeContents], list[stepwise.Block]]:
    assert policy.rule.keep is not None
    if pfs_clients == PUBLISHED and policy.placement == stepwise.CLAIRVOYANT:
        return stepwise.clairvoyant(case.sequences, case.sizes, case.capacities, case.system.tiers[0].capacity)
    return policy.rule.keep(case.sequences, case.sizes, case.capacities, case.per_epoch), []
