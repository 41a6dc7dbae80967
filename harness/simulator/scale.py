"""Jobs too large to simulate every node: the lower bound exactly, policies on a sample of the nodes.

Epochs are streamed, two at a time: only the sampled nodes' accesses and the slowest node's compute of every step are
kept. A step's end on all nodes is estimated from those (steps.Crowd). What other nodes hold is estimated, too: an
unsampled node is taken to keep, and to have fetched by then, at each position of its own sequence what a sampled node
does at that position of its own. Held against whole simulations of small jobs, the estimates are right to some percent.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.plan.placement.frequency import clairvoyant_node
from dlio_bench.harness.plan.placement.rows import CLAIRVOYANT, LOWER_BOUND, NAIVE, ROWS, STAGING_POOL
from dlio_bench.harness.simulator import steps
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.fills import NEVER, Copies, Fill, Floats, fill, local_copies
from dlio_bench.harness.simulator.predict import Prediction, bound_row, filled_by, row
from dlio_bench.harness.simulator.traces import trace

SAMPLED = 32  # nodes
STREAMS = 2  # epochs at a time: each takes about 50 bytes a sample
HOLDING_EPOCHS = 3  # what is read in these is looked for on other nodes; a sample read later only has no holder here
SUPPORTED = (LOWER_BOUND, NAIVE, STAGING_POOL, CLAIRVOYANT)


@dataclass(frozen=True)
class Streamed:
    """slowest [steps of all epochs]: MB of the largest local batch. sequences: int32 ids of each sampled node."""

    slowest: Floats
    nodes: npt.NDArray[np.int64]
    sequences: list[npt.NDArray[np.int32]]


def stream(case: Case, sampled: int = SAMPLED) -> Streamed:
    """Walk all accesses of all nodes once, keeping those of `sampled` nodes, evenly spaced."""
    nodes = np.arange(sampled) * case.nodes // sampled
    sizes = case.megabytes.astype(np.float32)
    own = np.empty((sampled, case.epochs, case.steps, case.batch), np.int32)
    slowest = np.empty((case.epochs, case.steps))

    def one(number: int) -> None:
        order = case.epoch(number)
        slowest[number] = sizes[order].sum(axis=2, dtype=np.float64).max(axis=1)
        own[:, number] = order[:, nodes].swapaxes(0, 1)

    with ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(one, range(case.epochs)))
    return Streamed(slowest.reshape(-1), nodes, list(own.reshape(sampled, -1)))


def predict(case: Case, policies: Sequence[str], sampled: int = SAMPLED) -> Iterator[Prediction]:
    """A prediction for each policy, in the worst case of PFS clients; rows that cannot be sampled say so."""
    streamed = stream(case, sampled)
    slowest = streamed.slowest * case.costs.compute + case.batch * case.costs.sample
    bound = float(slowest.sum())
    crowd = steps.Crowd(slowest, case.nodes)
    for name in policies:
        if name == LOWER_BOUND:
            yield bound_row(bound)
        elif name in SUPPORTED:
            yield _sampled(case, name, streamed, crowd, bound)
        else:
            reason = f"Of {case.nodes} nodes only {sampled} are simulated, and this policy needs all of them."
            yield Prediction(name, None, None, {}, None, reason=f"{reason} Use fewer nodes or epochs.")


def _sampled(case: Case, name: str, streamed: Streamed, crowd: steps.Crowd, bound: float) -> Prediction:
    fills: list[Fill] = []
    remote: tuple[Floats, ...] = ()
    tiers = len(case.capacities)
    if name == CLAIRVOYANT:
        starts = streamed.nodes * len(case.sizes) // case.nodes
        for sequence, start in zip(streamed.sequences, starts, strict=True):
            keeps = clairvoyant_node(sequence, case.sizes, case.capacities, int(start))
            fills.append(fill(keeps, case.megabytes, case.costs))
        remote = _elsewhere(case, streamed, fills)
    traces = []
    for position, sequence in enumerate(streamed.sequences):
        copies = Copies(*local_copies(fills[position], len(case.sizes)), remote) if fills else None
        traces.append(trace(sequence, case.megabytes, copies, tiers))
    outcome = steps.simulate(traces, case.batch, ROWS[name].behaviour, case.costs, crowd=crowd)
    found = row(case, name, outcome, filled_by(fills), 0.0, bound)
    factor = case.nodes / len(traces)
    scaled = {tier: round(count * factor) for tier, count in found.bytes.items()}
    return Prediction(name, found.seconds, found.stall_seconds, scaled, found.over_bound, found.pfs_in_steps)


def _elsewhere(case: Case, streamed: Streamed, fills: Sequence[Fill]) -> tuple[Floats, ...]:
    """When some node has each sample in each tier, float64 [samples] a tier, as far as the first epochs tell."""
    tiers = len(case.capacities)
    epochs = min(HOLDING_EPOCHS, case.epochs)
    likely = np.full((tiers, len(fills), epochs, case.per_epoch), NEVER)
    for position, (one, sequence) in enumerate(zip(fills, streamed.sequences, strict=True)):
        done, place = local_copies(one, len(case.sizes))
        early = sequence[: epochs * case.per_epoch].reshape(epochs, case.per_epoch)
        for tier in range(tiers):
            likely[tier, position] = np.where(place[early] == tier, done[early], NEVER)
    found = tuple(np.full(len(case.sizes), NEVER) for _ in range(tiers))
    for number in range(epochs):
        order = case.epoch(number)
        for node in range(case.nodes):
            ids = order[:, node].reshape(-1)
            for tier in range(tiers):
                offered = likely[tier, node % len(fills), number]
                found[tier][ids] = np.minimum(found[tier][ids], offered)
    return found
