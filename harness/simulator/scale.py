"""Jobs too large to simulate every node: the lower bound exactly, policies on a sample of the nodes.

Epochs are streamed, two at a time: only the sampled nodes' accesses and the largest batch of every step are kept. A
step's end on all nodes is estimated from those (steps.Crowd). What other nodes hold is estimated, too: an unsampled
node is taken to keep, and to have fetched by then, at each position of its own sequence what a sampled node does at
that position of its own; of `cooperative` the holders of all samples are known. Held against whole simulations of
small jobs, the estimates are right within 4 %, from 8 nodes as from 32: what nodes differ in evens out over the steps.
So the longer the nodes' sequences, the fewer nodes are simulated (sampled_nodes).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.plan.placement.contents import NodeContents
from dlio_bench.harness.plan.placement.cooperative import first_holders, held_by_all, node_contents
from dlio_bench.harness.plan.placement.frequency import clairvoyant_node, counted_once
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.simulator import conserved, steps
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.fills import NEVER, Copies, Fill, Floats, fill, local_copies
from dlio_bench.harness.simulator.predict import (
    CONSERVED,
    LOWER_BOUND,
    WORST,
    Filled,
    Prediction,
    bound_row,
    filled_by,
    policy_of,
    row,
    useful,
)
from dlio_bench.harness.simulator.traces import Outcome, trace

SAMPLED, FEWEST_SAMPLED = 32, 8  # nodes at most, and at least: of jobs of 48 to 200, 8 told no less than 32 do
SAMPLED_ACCESSES = 12_000_000  # of all sampled nodes: some 5 microseconds and 100 bytes each
STREAMS = 2  # epochs at a time: each takes about 50 bytes a sample
HOLDING_EPOCHS = 3  # what is read in these is looked for on other nodes; a sample read later only has no holder here
HOLDING_ACCESSES = 100_000_000  # of all nodes, where memory allows more epochs: about 8 bytes each


Estimate: TypeAlias = tuple[list[NodeContents], list[conserved.Stands]]


@dataclass(frozen=True)
class Streamed:
    """largest [steps of all epochs]: MB of the largest local batch. sequences: int32 ids of each sampled node."""

    largest: Floats
    nodes: npt.NDArray[np.int64]
    sequences: list[npt.NDArray[np.int32]]


def sampled_nodes(case: Case) -> int:
    """How many of a large job's nodes are simulated: those that make SAMPLED_ACCESSES accesses, from 8 to 32."""
    return min(SAMPLED, max(FEWEST_SAMPLED, SAMPLED_ACCESSES // (case.per_epoch * case.epochs)))


def stream(case: Case, sampled: int) -> Streamed:
    """Walk all accesses of all nodes once, keeping those of `sampled` nodes, evenly spaced."""
    nodes = np.arange(sampled) * case.nodes // sampled
    sizes = case.megabytes.astype(np.float32)
    sequences = np.empty((sampled, case.epochs, case.steps, case.batch), np.int32)
    largest = np.empty((case.epochs, case.steps))

    def keep_epoch(number: int) -> None:
        order = case.epoch(number)
        largest[number] = sizes[order].sum(axis=2, dtype=np.float64).max(axis=1)
        sequences[:, number] = order[:, nodes].swapaxes(0, 1)

    with ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(keep_epoch, range(case.epochs)))
    return Streamed(largest.reshape(-1), nodes, list(sequences.reshape(sampled, -1)))


def predict(case: Case, policies: Sequence[str], pfs_clients: str, sampled: int) -> Iterator[Prediction]:
    """A prediction for each policy; rows that cannot be sampled say so. `pfs_clients`: conserved or worst."""
    streamed = stream(case, sampled)
    bound = case.costs.batch_seconds(float(streamed.largest.sum()), case.batch * len(streamed.largest))
    crowd = steps.Crowd(streamed.largest, case.nodes)
    for name in policies:
        if name == LOWER_BOUND:
            yield bound_row(bound)
        elif (policy := policy_of(name)).placement in ESTIMATED[pfs_clients]:
            run = _conserved if pfs_clients == CONSERVED else _sampled
            outcome, filled = run(case, policy, streamed, crowd)
            prediction = row(case, name, outcome, filled, 0.0, bound)
            yield replace(
                prediction, bytes={tier: round(n * case.nodes / sampled) for tier, n in prediction.bytes.items()}
            )
        else:
            hint = " --pfs-clients conserved estimates it." if policy.placement in ESTIMATED[CONSERVED] else ""
            reason = f"Of {case.nodes} nodes only {sampled} are simulated, and this policy needs all of them.{hint}"
            yield Prediction(name, None, None, {}, None, reason=f"{reason} Use fewer nodes or epochs.")


def _conserved(case: Case, policy: Policy, streamed: Streamed, crowd: steps.Crowd) -> tuple[Outcome, Filled]:
    keeps, stands = ESTIMATED[CONSERVED][policy.placement](case, streamed, useful(case, policy.rule))
    outcome, filled, _ = conserved.simulate(
        streamed.sequences, keeps, case.megabytes, case.batch, policy.behaviour, case.costs, crowd=crowd,
        stands=stands,
    )  # fmt: skip
    return outcome, filled


def _nothing(case: Case, streamed: Streamed, capacities: Sequence[int]) -> Estimate:
    del case, streamed, capacities
    return [], []


def _clairvoyant(case: Case, streamed: Streamed, capacities: Sequence[int]) -> Estimate:
    """A node that is not simulated is taken to keep, at each early position of its sequence, what its stand-in does."""
    keeps = _most_read(case, streamed, capacities)
    return keeps, _by_position(case, streamed, keeps)


def _most_read(case: Case, streamed: Streamed, capacities: Sequence[int]) -> list[NodeContents]:
    starts = (streamed.nodes * len(case.sizes) // case.nodes).tolist()
    return [
        clairvoyant_node(sequence, case.sizes, capacities, start)
        for sequence, start in zip(streamed.sequences, starts, strict=True)
    ]


def _cooperative(case: Case, streamed: Streamed, capacities: Sequence[int]) -> Estimate:
    """The holders are known of all nodes. A node that is not simulated has its n-th sample when its stand-in has."""
    coming = (list(case.epoch(number).swapaxes(0, 1).reshape(case.nodes, -1)) for number in range(case.epochs))
    firsts = first_holders(coming, case.nodes, case.sizes, capacities)
    held = held_by_all(firsts, len(case.sizes))
    keeps, stands = [], []
    for position, (node, sequence) in enumerate(zip(streamed.nodes.tolist(), streamed.sequences, strict=True)):
        contents = node_contents(counted_once(sequence, len(case.sizes)), firsts[node], held, case.sizes, capacities)
        holds = ~np.concatenate(contents.copies)
        alike = _alike(case, streamed, position)
        table = np.full((int(holds.sum()), len(alike)), conserved.NOBODY, np.int32)
        start = 0
        for tier, copies in enumerate(contents.copies):
            held_here = int((~copies).sum())
            for column, other in enumerate(alike):
                theirs = firsts[other][tier][:held_here]
                table[start : start + len(theirs), column] = theirs
            start += held_here
        rows = np.where(holds, np.cumsum(holds) - 1, conserved.NOBODY)
        keeps.append(contents)
        stands.append(conserved.Stands(table, rows.astype(np.int32)))
    return keeps, stands


def _by_position(case: Case, streamed: Streamed, keeps: Sequence[NodeContents]) -> list[conserved.Stands]:
    early = min(max(HOLDING_EPOCHS, HOLDING_ACCESSES // len(case.sizes)), case.epochs)
    reads = np.empty((case.nodes, early, case.steps, case.batch), np.int32)
    for number in range(early):
        reads[:, number] = case.epoch(number).swapaxes(0, 1)
    reads = reads.reshape(case.nodes, -1)
    stands = []
    for position, (contents, sequence) in enumerate(zip(keeps, streamed.sequences, strict=True)):
        first = np.full(len(case.sizes), conserved.NOBODY, np.int32)
        opening = sequence[: reads.shape[1]]
        first[opening[::-1]] = np.arange(len(opening))[::-1]
        alike = reads[_alike(case, streamed, position)]
        stands.append(conserved.Stands(np.ascontiguousarray(alike.T), first[contents.ids]))
    return stands


def _alike(case: Case, streamed: Streamed, position: int) -> list[int]:
    """The nodes that a simulated node stands for beside itself."""
    simulated = set(streamed.nodes.tolist())
    others = [node for node in range(case.nodes) if node not in simulated]
    return others[position :: len(streamed.nodes)]


def _sampled(case: Case, policy: Policy, streamed: Streamed, crowd: steps.Crowd) -> tuple[Outcome, Filled]:
    fills: list[Fill] = []
    remote: tuple[Floats, ...] = ()
    tiers = len(case.capacities)
    if policy.rule.keep is not None:  # that of `clairvoyant`
        fills = [fill(node, case.megabytes, case.costs) for node in _most_read(case, streamed, case.capacities)]
        remote = _elsewhere(case, streamed, fills)
    traces = []
    for position, sequence in enumerate(streamed.sequences):
        copies = Copies(*local_copies(fills[position], len(case.sizes)), remote) if fills else None
        traces.append(trace(sequence, case.megabytes, copies, tiers))
    return steps.simulate(traces, case.batch, policy.behaviour, case.costs, crowd=crowd), filled_by(fills)


def _elsewhere(case: Case, streamed: Streamed, fills: Sequence[Fill]) -> tuple[Floats, ...]:
    """When some node has each sample in each tier, float64 [samples] a tier, as far as the first epochs tell."""
    tiers = len(case.capacities)
    epochs = min(HOLDING_EPOCHS, case.epochs)
    likely = np.full((tiers, len(fills), epochs, case.per_epoch), NEVER)
    for position, (node_fill, sequence) in enumerate(zip(fills, streamed.sequences, strict=True)):
        done, place = local_copies(node_fill, len(case.sizes))
        early = sequence[: epochs * case.per_epoch].reshape(epochs, case.per_epoch)
        for tier in range(tiers):
            likely[tier, position] = np.where(place[early] == tier, done[early], NEVER)
    earliest = tuple(np.full(len(case.sizes), NEVER) for _ in range(tiers))
    for number in range(epochs):
        order = case.epoch(number)
        for node in range(case.nodes):
            ids = order[:, node].reshape(-1)
            for tier in range(tiers):
                offered = likely[tier, node % len(fills), number]
                earliest[tier][ids] = np.minimum(earliest[tier][ids], offered)
    return earliest


# Placements of which some nodes tell what all keep: what the simulated nodes do, and what they stand for.
ESTIMATED: dict[str, dict[str, Callable[[Case, Streamed, Sequence[int]], Estimate]]] = {
    CONSERVED: {"none": _nothing, "clairvoyant": _clairvoyant, "cooperative": _cooperative},
    WORST: {"none": _nothing, "clairvoyant": _clairvoyant},
}
