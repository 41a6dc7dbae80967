"""The Tiramisu of the climate runs: dense blocks down and up a ladder of resolutions."""

from typing import Any

from dlio_bench.benchmarks.model import Tensor

CLASSES, FIRST, DROPPED = 3, 48, 0.2
CORI = (3, 3, 4, 4, 7, 7, 10)  # layers of each dense block: run_cori_knl.sh --blocks


def levels(shape: tuple[int, ...], most: int) -> int:
    """How many dense blocks an image has room for: every step down must halve both sides without a rest."""
    rows, columns = shape[:2]
    count = 1
    while count < most and rows % 2 == columns % 2 == 0:
        rows, columns, count = rows // 2, columns // 2, count + 1
    return count


def network(
    shape: tuple[int, ...],
    width: float = 1,
    dropout: bool = True,
    seed: int = 0,
    *,
    blocks: tuple[int, ...] = CORI,
    growth: int = 16,
    kernel: int = 3,
) -> Any:
    """Logits [n, rows, columns, 3]. No normalisation; steps down are 1 x 1 convolutions of stride 2, no pooling.

    An image that cannot be halved so often (the tiny dataset's, 48 x 72) gets the first blocks only, four of the seven.
    The published code makes one step down more than it uses: its weights are counted, here too, and never trained.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    relu, join = keras().activations.relu, keras().layers.Concatenate()
    added_channels, used = made.channels(growth), blocks[: levels(shape, len(blocks))]

    def layer(x: Tensor, filters: int, size: int, stride: int = 1) -> Tensor:
        return made.drop(relu(made.conv(x, filters, size, stride=stride, initial="he_uniform")), DROPPED)

    def block(x: Tensor, layers: int) -> tuple[Tensor, list[Tensor]]:
        added = []
        for _ in range(layers):
            added.append(layer(x, added_channels, kernel))
            x = join([x, added[-1]])
        return x, added

    x = layer(made.inputs, made.channels(FIRST), kernel)
    skips: list[Tensor] = []
    for layers in used:
        if skips:
            x = layer(x, x.shape[-1], 1, stride=2)
        x, added = block(x, layers)
        skips.append(x)
    added[-1] = made.idle(added[-1], x.shape[-1])
    for layers, skip in zip(used[-2::-1], skips[-2::-1], strict=True):
        risen = added[0] if len(added) == 1 else join(added)
        x = join([made.grow(risen, risen.shape[-1]), skip])
        x, added = block(x, layers)
    # the published code drops logits as well
    return made.model(made.drop(made.conv(x, CLASSES, 1, initial="he_uniform"), DROPPED), "tiramisu")
