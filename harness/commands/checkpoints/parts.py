"""The files of a checkpoint: a pure function of the model, the ranks that write it, and the layout.

Names, and who writes what, are those of argonne-lcf/dlio_benchmark @e1919d7, checkpointing/base_checkpointing.py:64-67
and 360-418, so that a folder compares with one of that benchmark.
"""

from collections.abc import Iterator

from msgspec import Struct

from dlio_bench.benchmarks.published_models.models import FULLY_SHARDED, CheckpointModel, Transformer
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.checkpoints.options import FILE_PER_RANK, SHARDED
from dlio_bench.reports.view.formatting import plural


class FilePart(Struct, frozen=True):
    """Bytes that one rank writes into a file, from `offset` on."""

    file: str
    offset: int
    bytes: int
    rank: int


def default_shards(model: CheckpointModel, ranks: int) -> int:
    """Ranks whose state is imitated: those that write; of a model with pipeline stages as many as published."""
    return ranks if model.sharding.zero == FULLY_SHARDED else max(model.sharding.ranks, ranks)


def parts(model: CheckpointModel, ranks: int, shards: int, layout: str, fraction: float = 1.0) -> list[FilePart]:
    """What each of `ranks` writes, in the order in which it does; the state of a job of `shards` ranks.

    Rank r writes the shards s with s * ranks // shards = r. fraction: of the bytes of each part of a shard, which has
    one at least; files and writers stay. UsageError for shards that the model or the ranks do not allow.
    """
    _require(model, ranks, shards)
    pieces = [
        FilePart(name, 0, max(1, int(size * fraction)), shard * ranks // shards)
        for shard in range(shards)
        for name, size in _of_shard(model, shard, shards)
    ]
    return pieces if layout == SHARDED else list(_join_parts(pieces, layout))


def total(chosen: list[FilePart]) -> int:
    """Bytes of a checkpoint."""
    return sum(part.bytes for part in chosen)


def sizes(chosen: list[FilePart]) -> dict[str, int]:
    """Bytes of each file, by its name."""
    ends: dict[str, int] = {}
    for part in chosen:
        ends[part.file] = max(ends.get(part.file, 0), part.offset + part.bytes)
    return ends


def _join_parts(pieces: list[FilePart], layout: str) -> Iterator[FilePart]:
    """The same bytes with one file for each rank, or one for all: what a rank writes is one part."""
    at = 0
    for rank in range(pieces[-1].rank + 1):
        size = sum(part.bytes for part in pieces if part.rank == rank)
        if layout == FILE_PER_RANK:
            yield FilePart(f"rank_{rank}_states.pt", 0, size, rank)
        else:
            yield FilePart("states.pt", at, size, rank)
            at += size


def _require(model: CheckpointModel, ranks: int, shards: int) -> None:
    if shards < ranks or shards % ranks:
        raise UsageError(
            f"--shards {shards}: {plural(ranks, 'rank')} share them evenly, so it must be a multiple of {ranks}, such "
            f"as {max(shards // ranks, 1) * ranks}."
        )
    group = model.sharding.tensor * model.sharding.pipeline
    if model.sharding.zero != FULLY_SHARDED and shards % group:
        raise UsageError(
            f"--shards {shards}: {model.title} has {model.sharding.tensor} x {model.sharding.pipeline} tensor and "
            f"pipeline groups, so it must be a multiple of {group}, such as {model.sharding.ranks} as published."
        )


def _of_shard(model: CheckpointModel, shard: int, shards: int) -> Iterator[tuple[str, int]]:
    """(file, bytes) of what a rank of the imitated job holds.

    ZeRO 3: its share of the weights and of the optimiser's state. ZeRO 1 with pipeline stages: a file for each layer of
    its stage, if it is of the first data-parallel group, and its share of the optimiser's state.
    """
    sharding = model.sharding
    group = sharding.tensor * sharding.pipeline
    data_parallel, model_parallel = divmod(shard, group)
    share = model.parameters // shards + (shard < model.parameters % shards)
    name = f"zero_pp_rank_{data_parallel}_mp_rank_{model_parallel}"
    if sharding.zero == FULLY_SHARDED:
        yield f"{name}_model_states.pt", share * model.weight_bytes
    elif data_parallel == 0:
        assert model.transformer is not None
        stage = shard // sharding.tensor % sharding.pipeline
        for layer in layers_of(model.transformer.layers, sharding.pipeline, stage):
            held = layer_share(model.transformer, layer, sharding.tensor) * model.weight_bytes
            yield f"layer_{layer}-model_{model_parallel}_model_states.pt", held
    held = (share + model.optimizer_extra) * model.optimizer_arrays * model.optimizer_bytes
    yield f"{name}_optim_states.pt", held


def layers_of(layers: int, stages: int, stage: int) -> range:
    """Layers of a pipeline stage: 1 to `layers` are transformer layers, of which the first stages get the remainder.

    Layer 0 is the embedding, the last two are the head and the final norm.
    """
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more) + 1
    after = first + each + (stage < more)
    return range(0 if stage == 0 else first, after + 2 * (stage == stages - 1))


def layer_share(shape: Transformer, layer: int, tensor: int) -> int:
    """Numbers of a layer that one of `tensor` ranks holds."""
    if layer in (0, shape.layers + 1):
        return shape.embedding_parameters // tensor
    return (shape.hidden if layer == shape.layers + 2 else shape.layer_parameters) // tensor
