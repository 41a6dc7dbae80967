"""Sizes of models whose states are written as checkpoints, every number with its source.

Numbers of configurations are published; parameters and bytes that follow from them are derived, here and in
`harness/commands/checkpoints/parts.py`.
"""

from functools import cache

from msgspec import Struct

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.errors import UsageError, unknown

FLOAT16, FLOAT32 = 2, 4  # bytes of a number
FULLY_SHARDED = 3  # stage of ZeRO: weights, gradients and optimiser state are shared out
_DLIO = "argonne-lcf/dlio_benchmark @e1919d7"
_RULES = "mlcommons/storage @0366ccf, Rules.md, Table 2 (CLOSED)"


class Transformer(Struct, frozen=True):
    """The configuration of a decoder of Llama's kind, as published."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def layer_parameters(self) -> int:
        """Of one layer: attention, two norms, and a gated feed-forward network of three matrices.

        argonne-lcf/dlio_benchmark @e1919d7, checkpointing/base_checkpointing.py, get_layer_parameters.
        """
        keys_and_values = 2 * (self.hidden // self.heads) * self.kv_heads
        attention = self.hidden * (self.hidden + keys_and_values) + self.hidden**2
        return attention + 3 * self.feed_forward * self.hidden + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, and of the output head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model: embedding, layers, final norm, head."""
        return 2 * self.embedding_parameters + self.layers * self.layer_parameters + self.hidden


class Sharding(Struct, frozen=True):
    """Who holds what, as published: ranks in tensor x pipeline x data parallel groups, and the stage of ZeRO.

    Stage 3: every rank holds a share of weights and optimiser state. Stage 1: the first data-parallel group holds the
    weights by layer, every rank a share of the optimiser's state.
    """

    tensor: int
    pipeline: int
    zero: int
    ranks: int  # of the published run


class CheckpointModel(Struct, frozen=True):
    """A model whose checkpoints can be written. transformer: None of a network that every rank holds whole.

    parameters: derived from the published configuration, or published with a workload's network.

    weight_bytes: of a number of the weights. optimizer_arrays: arrays of the optimiser, as long as the weights, of
    `optimizer_bytes` a number; each has `optimizer_extra` numbers more on every rank.
    """

    name: str
    title: str
    parameters: int
    weight_bytes: int
    optimizer_bytes: int
    optimizer_arrays: int
    optimizer_extra: int
    sharding: Sharding
    source: str
    note: str
    transformer: Transformer | None = None


def _llama(size: str, shape: Transformer, sharding: Sharding, note: str = "") -> CheckpointModel:
    """A model of the Llama 3 family: half-precision weights, and Adam with a master copy in single precision."""
    return CheckpointModel(
        name=f"llama3-{size.lower()}",
        title=f"Llama 3 {size}",
        parameters=shape.parameters,
        weight_bytes=FLOAT16,
        optimizer_bytes=FLOAT32,
        optimizer_arrays=3,
        optimizer_extra=5 * shape.hidden,
        sharding=sharding,
        source=f"configuration: {_DLIO}, configs/workload; ranks and sharding: {_RULES}; bytes: "
        f"{_DLIO}, checkpointing/base_checkpointing.py:284-358",
        note=note,
        transformer=shape,
    )


_HEADS = (
    "As in the workload's configuration, it has 128 heads of attention; Llama 3 70B itself has 64 and with them "
    "70.6 thousand million parameters."
)
LLAMA3_8B = _llama("8B", Transformer(32, 4096, 14336, 32, 8, 128256), Sharding(1, 1, FULLY_SHARDED, 8))
LLAMA3_70B = _llama("70B", Transformer(80, 8192, 28672, 128, 8, 128256), Sharding(8, 1, FULLY_SHARDED, 64), _HEADS)
LLAMA3_405B = _llama("405B", Transformer(126, 16384, 53248, 128, 8, 128256), Sharding(8, 32, 1, 512))

# Arrays of a network's optimiser that are as long as its weights: Adam keeps two moments, SGD with momentum one.
_ARRAYS = {
    "hepcnn": 2,
    "deeplab": 2,
    "tiramisu": 2,
    "cosmoflow": 1,
    "cosmoflow-sc18": 2,
    "resnet50": 1,
    "vgg16": 2,
    "hepgan": 2,
}


@cache
def models_by_name() -> dict[str, CheckpointModel]:
    """All models: the transformers, and the networks of the workloads, which load with it.

    Each of these has the state of its own optimiser in single precision.
    """
    networks = [
        CheckpointModel(
            name=model.name,
            title=model.title,
            parameters=model.parameters,
            weight_bytes=FLOAT32,
            optimizer_bytes=FLOAT32,
            optimizer_arrays=_ARRAYS[model.name],
            optimizer_extra=0,
            sharding=Sharding(1, 1, FULLY_SHARDED, 1),
            source=f"parameters: benchmarks/{name}/model.py, {model.source}; optimiser: the same file",
            note="Sharded as if by ZeRO 3; a training of this suite writes it as one file (run --checkpoint).",
        )
        for name, workload in WORKLOADS.items()
        for model in workload.models
        if model.name in _ARRAYS  # of another package's, nobody has said it
    ]
    return {model.name: model for model in (LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, *networks)}


SUBSET = "llama3-8b-subset"  # the published workload of its own: `LLAMA3_8B` on so many ranks, whole
SUBSET_RANKS, SUBSET_CHECKPOINTS = 8, 10
SUBSET_SOURCE = "mlcommons/storage @0366ccf, Rules.md 4.3.5; issue 841 there"


def find(name: str) -> CheckpointModel:
    """The model of that name, or of the published subset. UsageError, with what can be had instead."""
    if name.endswith("-subset") and name != SUBSET:
        raise UsageError(
            f"There is no {name}: the published subset of {SUBSET_RANKS} ranks is of Llama 3 8B alone. "
            f"{SUBSET_RANKS} ranks write a small part of a larger model's state, and their rates do not stand beside "
            f"whole ones: ten such rows were withdrawn from the published results ({SUBSET_SOURCE}). Use {SUBSET}, or "
            "the whole model with --shards as published."
        )
    if name != SUBSET and name not in models_by_name():
        raise unknown("model", name, [*models_by_name(), SUBSET])
    return LLAMA3_8B if name == SUBSET else models_by_name()[name]
