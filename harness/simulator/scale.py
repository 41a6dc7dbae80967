"""Jobs too large to simulate every node: the lower bound exactly, policies on a sample of the nodes.

Epochs are streamed, two at a time. Only the sampled nodes' accesses and the largest batch of every step are kept; they
give an estimate of each step's end on all nodes (Crowd). What other nodes hold is estimated, too. An unsampled
node is taken to keep the samples at the same positions of its sequence as a sampled node does, and to have them at the
same time. Under `cooperative` the holders of all samples are known. Compared with full simulations of small jobs, the
estimates are right within 4 %, with 8 sampled nodes as with 32: differences between nodes even out over the steps. So
the longer the nodes' sequences, the fewer nodes are simulated (sampled_nodes).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.harness.plan.placement.cooperative import first_holders, held_by_all, node_contents
from dlio_bench.harness.plan.placement.frequency import clairvoyant_node, count_in_one
from dlio_bench.harness.plan.placement.rule import NodeContents
from dlio_bench.harness.plan.policies import Policy
from dlio_bench.harness.simulator import conserved, stepwise
from dlio_bench.harness.simulator.cases import Case
from dlio_bench.harness.simulator.model import NEVER, CopyTimes, Crowd, Fill, Floats, Outcome, fill, local_copies, trace
from dlio_bench.harness.simulator.predict import (
    CONSERVED,
    LOWER_BOUND,
    WORST,
    Filled,
    bound_row,
    filled_by,
    policy_of,
    row,
    row_without,
    useful,
)
from dlio_bench.reports.simulation.types import Row
from dlio_bench.signals import interruptible

ALL_NODES = 10_000_000  # accesses up to which every node is simulated: about 200 bytes each
SAMPLED, FEWEST_SAMPLED = 32, 8  # most and fewest nodes: for jobs of 48 to 200 nodes, 8 are as exact as 32
SAMPLED_ACCESSES = 12_000_000  # of all sampled nodes: about 5 microseconds and 100 bytes each
STREAMS = 2  # epochs at a time: each takes about 50 bytes a sample
HOLDING_EPOCHS = 3  # other nodes are taken to hold only samples that they read in the first epochs, this many at least
HOLDING_ACCESSES = 100_000_000  # more epochs, up to these accesses of all nodes: about 8 bytes each


Estimate: TypeAlias = tuple[list[NodeContents], list[conserved.Represented]]


class SampledStreams(Struct, frozen=True):
    """largest [steps of all epochs]: MB of the largest local batch. sequences: int32 ids of each sampled node."""

    largest: Floats
    nodes: npt.NDArray[np.int64]
    sequences: list[npt.NDArray[np.int32]]


def sampled_nodes(case: Case) -> int:
    """How many nodes are simulated: all, or, in a large job, enough for SAMPLED_ACCESSES accesses, from 8 to 32."""
    if case.accesses <= ALL_NODES or case.nodes <= SAMPLED:
        return case.nodes
    return min(SAMPLED, max(FEWEST_SAMPLED, SAMPLED_ACCESSES // (case.per_epoch * case.epochs)))


def stream(case: Case, sampled: int) -> SampledStreams:
    """Walk over the accesses of all nodes once, and keep those of `sampled` evenly spaced nodes."""
    nodes = np.arange(sampled) * case.nodes // sampled
    sizes = case.megabytes.astype(np.float32)
    sequences = np.empty((sampled, case.epochs, case.steps, case.batch), np.int32)
    largest = np.empty((case.epochs, case.steps))

    def keep_epoch(number: int) -> None:
        order = case.epoch(number)
        largest[number] = sizes[order].sum(axis=2, dtype=np.float64).max(axis=1)
        sequences[:, number] = order[:, nodes].swapaxes(0, 1)

    with ThreadPoolExecutor(STREAMS) as pool:
        list(interruptible(lambda: pool.map(keep_epoch, range(case.epochs))))
    return SampledStreams(largest.reshape(-1), nodes, list(sequences.reshape(sampled, -1)))


def predict(case: Case, policies: Sequence[str], pfs_clients: str, sampled: int) -> Iterator[Row]:
    """A prediction for each policy, or the reason why a sample cannot give one. `pfs_clients`: conserved or worst."""
    streamed = stream(case, sampled)
    bound = case.costs.batch_seconds(float(streamed.largest.sum()), case.batch * len(streamed.largest))
    crowd = Crowd(streamed.largest, case.nodes)
    for name in policies:
        if name == LOWER_BOUND:
            yield bound_row(bound)
        elif (policy := policy_of(name)).placement in ESTIMATED[pfs_clients]:
            run = _run_conserved if pfs_clients == CONSERVED else _run_sampled
            outcome, filled = run(case, policy, streamed, crowd)
            prediction = row(case, name, outcome, filled, 0.0, bound)
            yield replace(
                prediction, bytes={tier: round(n * case.nodes / sampled) for tier, n in prediction.bytes.items()}
            )
        else:
            hint = " --pfs-clients conserved estimates it." if policy.placement in ESTIMATED[CONSERVED] else ""
            reason = f"Only {sampled} of {case.nodes} nodes are simulated, and this policy needs all of them.{hint}"
            yield row_without(name, f"{reason} Use fewer nodes or epochs.")


def _run_conserved(case: Case, policy: Policy, streamed: SampledStreams, crowd: Crowd) -> tuple[Outcome, Filled]:
    keeps, represented = ESTIMATED[CONSERVED][policy.placement](case, streamed, useful(case, policy.rule))
    outcome, filled, _ = conserved.simulate(
        streamed.sequences, keeps, case.megabytes, case.batch, policy.behaviour, case.costs, crowd=crowd,
        represented=represented,
    )  # fmt: skip
    return outcome, filled


def _clairvoyant(case: Case, streamed: SampledStreams, capacities: Sequence[int]) -> Estimate:
    """A represented node is taken to keep the same early positions of its sequence as the node that represents it."""
    keeps = _most_read_contents(case, streamed, capacities)
    return keeps, _by_position(case, streamed, keeps)


def _most_read_contents(case: Case, streamed: SampledStreams, capacities: Sequence[int]) -> list[NodeContents]:
    starts = (streamed.nodes * len(case.sizes) // case.nodes).tolist()
    return [
        clairvoyant_node(sequence, case.sizes, capacities, start)
        for sequence, start in zip(streamed.sequences, starts, strict=True)
    ]


def _cooperative(case: Case, streamed: SampledStreams, capacities: Sequence[int]) -> Estimate:
    """All holders are known. A represented node has its n-th sample when the node that represents it has its n-th."""
    coming = (list(case.epoch(number).swapaxes(0, 1).reshape(case.nodes, -1)) for number in range(case.epochs))
    firsts = first_holders(coming, case.nodes, case.sizes, capacities)
    held = held_by_all(firsts, len(case.sizes))
    keeps, represented = [], []
    for position, (node, sequence) in enumerate(zip(streamed.nodes.tolist(), streamed.sequences, strict=True)):
        contents = node_contents(count_in_one(sequence, len(case.sizes)), firsts[node], held, case.sizes, capacities)
        holds = ~np.concatenate(contents.copies)
        others = _represented_nodes(case, streamed, position)
        table = np.full((int(holds.sum()), len(others)), conserved.NOBODY, np.int32)
        start = 0
        for tier, copies in enumerate(contents.copies):
            held_here = int((~copies).sum())
            for column, other in enumerate(others):
                theirs = firsts[other][tier][:held_here]
                table[start : start + len(theirs), column] = theirs
            start += held_here
        rows = np.where(holds, np.cumsum(holds) - 1, conserved.NOBODY)
        keeps.append(contents)
        represented.append(conserved.Represented(table, rows.astype(np.int32)))
    return keeps, represented


def _by_position(case: Case, streamed: SampledStreams, keeps: Sequence[NodeContents]) -> list[conserved.Represented]:
    early = min(max(HOLDING_EPOCHS, HOLDING_ACCESSES // len(case.sizes)), case.epochs)
    reads = np.empty((case.nodes, early, case.steps, case.batch), np.int32)
    for number in range(early):
        reads[:, number] = case.epoch(number).swapaxes(0, 1)
    reads = reads.reshape(case.nodes, -1)
    represented = []
    for position, (contents, sequence) in enumerate(zip(keeps, streamed.sequences, strict=True)):
        first = np.full(len(case.sizes), conserved.NOBODY, np.int32)
        opening = sequence[: reads.shape[1]]
        first[opening[::-1]] = np.arange(len(opening))[::-1]
        others = reads[_represented_nodes(case, streamed, position)]
        represented.append(conserved.Represented(np.ascontiguousarray(others.T), first[contents.ids]))
    return represented


def _represented_nodes(case: Case, streamed: SampledStreams, position: int) -> list[int]:
    """The nodes, other than itself, that a simulated node represents."""
    simulated = set(streamed.nodes.tolist())
    others = [node for node in range(case.nodes) if node not in simulated]
    return others[position :: len(streamed.nodes)]


def _run_sampled(case: Case, policy: Policy, streamed: SampledStreams, crowd: Crowd) -> tuple[Outcome, Filled]:
    fills: list[Fill] = []
    remote: tuple[Floats, ...] = ()
    tiers = len(case.capacities)
    if policy.rule.keep is not None:  # that of `clairvoyant`
        fills = [
            fill(node, case.megabytes, case.costs) for node in _most_read_contents(case, streamed, case.capacities)
        ]
        remote = _remote_times(case, streamed, fills)
    traces = []
    for position, sequence in enumerate(streamed.sequences):
        copies = CopyTimes(*local_copies(fills[position], len(case.sizes)), remote) if fills else None
        traces.append(trace(sequence, case.megabytes, copies, tiers))
    return stepwise.simulate(traces, case.batch, policy.behaviour, case.costs, crowd=crowd), filled_by(fills)


def _remote_times(case: Case, streamed: SampledStreams, fills: Sequence[Fill]) -> tuple[Floats, ...]:
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


# Placements that a sample of the nodes can estimate: what the simulated and the represented nodes keep.
ESTIMATED: dict[str, dict[str, Callable[[Case, SampledStreams, Sequence[int]], Estimate]]] = {
    CONSERVED: {"none": lambda *_: ([], []), "clairvoyant": _clairvoyant, "cooperative": _cooperative},
    WORST: {"none": lambda *_: ([], []), "clairvoyant": _clairvoyant},
}
