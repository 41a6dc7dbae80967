"""Five properties of ways to feed a training, after a published table: derived from the rows of policies, or quoted.

Source of the table: R. Boehringer, Clairvoyant Prefetching for Machine Learning I/O, slides of the Master's thesis, ETH
Zurich, 2020, "Deep Learning I/O: Solutions" and "Discussion, Next Steps". Four of the five follow from a row's order,
and from what its placement keeps in a small job; ease of use does not.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from dlio_bench.harness.plan.orders import ORDERS
from dlio_bench.harness.plan.placement.rule import DoesNotApplyError, NodeContents, Placement
from dlio_bench.harness.plan.policies import OWN, Policy
from dlio_bench.harness.plan.shape import Shape

SOURCE = "R. Boehringer, Clairvoyant Prefetching for Machine Learning I/O, slides, ETH Zurich, 2020"
RULES = {
    "dataset_scalability": "it works where the tiers of all nodes together are smaller than the dataset",
    "node_scalability": "nodes keep samples, so that more nodes do not mean more reads of the file system",
    "configuration_independence": "it uses every tier that a node has: memory, node-local storage, or both",
    "accuracy": "every epoch is a new shuffle of the whole dataset, with each sample once",
    "ease_of_use": "quoted",
}
# A small job: nodes, samples of one byte, batch, epochs.
_NODES, _SAMPLES, _BATCH, _EPOCHS = 4, 96, 2, 4
_SMALL = (6, 6)  # bytes of RAM and of node-local storage: 48 on all nodes
_SHARES = ((24, 0), (0, 24), (12, 12))  # that hold a node's share of the samples, in one tier or in both


class Properties(Struct, frozen=True):
    """None: it does not follow from the row, or nobody said it. The names are those of RULES."""

    dataset_scalability: bool | None
    node_scalability: bool | None
    configuration_independence: bool | None
    accuracy: bool | None
    ease_of_use: bool | None = None


class PublishedProperties(Struct, frozen=True):
    """A row of the published table, with its footnotes."""

    approach: str
    properties: Properties
    notes: tuple[str, ...] = ()


_DEEPIO = PublishedProperties(
    "DeepIO", Properties(True, True, False, False, True), ("accuracy: in the entropy-aware opportunistic mode",)
)
_LBANN = PublishedProperties("LBANN Distributed Data Store", Properties(False, True, False, True, False))
PUBLISHED = {
    "tfdata": PublishedProperties("tf.data with shuffle/prefetch", Properties(True, False, False, False, True)),
    "double-buffer": PublishedProperties("Double Buffering", Properties(True, False, False, True, True)),
    "deepio-ordered": _DEEPIO,
    "deepio-opportunistic": _DEEPIO,
    "parallel-staging": PublishedProperties("Parallel Data Staging", Properties(True, True, False, False, False)),
    "lbann-dynamic": _LBANN,
    "lbann-preload": _LBANN,
    "locality-aware": PublishedProperties(
        "Locality-Aware Data Loading",
        Properties(True, True, False, True, None),
        (
            "accuracy: can differ with node-local batch normalization",
            "ease of use: a prototype for PyTorch; a general package was planned",
        ),
    ),
    "clairvoyant": PublishedProperties("HDMLP", Properties(True, True, True, True, True)),
}


def properties_of(row: Policy) -> Properties:
    """The properties of a row by RULES; ease of use as published. Nothing of a pipeline that is an application's own.

    A placement of whole files that has no samples to place is not asked for the size of the dataset.
    """
    ease = PUBLISHED[row.name].properties.ease_of_use if row.name in PUBLISHED else None
    if row.delivery == OWN:
        return Properties(None, None, None, None, ease)
    rule = row.rule
    any_size: bool | None
    if rule.keep is not None:
        any_size, tiers = _contents(rule, _SMALL) is not None, all(_fills(rule, each) for each in _SHARES)
    else:
        any_size, tiers = None if rule.files is not None else True, False
    return Properties(
        dataset_scalability=any_size,
        node_scalability=rule.keep is not None or rule.files is not None,
        configuration_independence=tiers and rule.files is None,
        accuracy=row.exactly_once and row.order == "global-shuffle",
        ease_of_use=ease,
    )


def _fills(rule: Placement, capacities: Sequence[int]) -> bool:
    """Whether each node of the small job keeps samples in every tier that it has."""
    contents = _contents(rule, capacities)
    return contents is not None and all(
        len(ids) > 0 for node in contents for ids, capacity in zip(node.tiers, capacities, strict=True) if capacity
    )


def _contents(rule: Placement, capacities: Sequence[int]) -> list[NodeContents] | None:
    """What the nodes of the small job keep; None where the placement does not apply."""
    shape = Shape(_SAMPLES, _NODES, _BATCH)
    order = ORDERS["global-shuffle"]
    sequences = [
        np.concatenate([order(shape, node, epoch, 0).ravel() for epoch in range(_EPOCHS)]) for node in range(_NODES)
    ]
    assert rule.keep is not None
    try:
        return rule.keep(sequences, np.ones(_SAMPLES, np.int64), capacities, len(sequences[0]) // _EPOCHS)
    except DoesNotApplyError:
        return None
