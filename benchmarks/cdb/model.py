"""The two networks that segmented climate images, and what they were trained by."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from dlio_bench.benchmarks.cdb.decode import FREQUENCIES, USED
from dlio_bench.benchmarks.metrics import confusion_counts, confusion_score
from dlio_bench.benchmarks.model import ALL, HIGHER, Fields, Model, Part, Sample, Tensor
from dlio_bench.benchmarks.schedules import CLIPPED_AT_ONE, constant, larc_adam
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError

CLASSES, FIRST, DROPPED = 3, 48, 0.2
CORI = (3, 3, 4, 4, 7, 7, 10)  # layers of each dense block: run_cori_knl.sh --blocks


def levels(shape: tuple[int, ...], most: int) -> int:
    """How many dense blocks an image has room for: every step down must halve both sides without a rest."""
    rows, columns = shape[:2]
    count = 1
    while count < most and rows % 2 == columns % 2 == 0:
        rows, columns, count = rows // 2, columns // 2, count + 1
    return count


def tiramisu(
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


UNITS = ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1))  # of the encoder's blocks: depth, units, stride of the last
OUTPUT_STRIDE = 8
RATES = (12, 24, 36)
HALF = 0.5  # stands for each batch normalisation: "activations in deep networks can overflow fp16's range"


def deeplab(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """Logits [n, rows, columns, 3]. Sides must be multiples of 8. There is no dropout, nor any normalisation.

    Without normalisation the published code loses the activation in front of each unit, too: it is left out here.
    UsageError for other sides.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    if shape[0] % OUTPUT_STRIDE or shape[1] % OUTPUT_STRIDE:
        raise UsageError(f"DeepLabv3+ takes images whose sides are multiples of 8, not {shape[0]} x {shape[1]}.")
    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    relu, join, add = keras().activations.relu, keras().layers.Concatenate(), keras().layers.Add()

    def scaled(x: Tensor, filters: int, kernel: int, stride: int = 1, dilation: int = 1) -> Tensor:
        x = made.conv(x, filters, kernel, stride=stride, dilation=dilation, bias=False)
        return relu(x * HALF)

    def unit(x: Tensor, depth: int, stride: int, dilation: int) -> tuple[Tensor, Tensor]:
        """(output, its first layer) of a residual unit of four times `depth` channels."""
        before = x * HALF
        if x.shape[-1] == 4 * depth:
            shortcut = x if stride == 1 else made.pool(x, "max", size=1, stride=stride)
        else:
            shortcut = made.conv(before, 4 * depth, 1, stride=stride)
        first = scaled(before, depth, 1)
        second = scaled(first, depth, 3, stride, dilation)
        return add([shortcut, made.conv(second, 4 * depth, 1)]), first

    low = x = made.pool(made.conv(made.inputs, made.channels(64), 7, stride=2), "max", size=3, stride=2, padding="same")
    reached, dilation = 4, 1
    for number, (depth, units, last) in enumerate(UNITS):
        for place in range(units):
            stride = last if place == units - 1 else 1
            if reached == OUTPUT_STRIDE:  # no smaller: wider apart instead
                x, first = unit(x, made.channels(depth), 1, dilation)
                dilation *= stride
            else:
                x, first = unit(x, made.channels(depth), stride, 1)
                reached *= stride
        if number == 0:
            low = first
    deep = made.channels(256)
    views = [scaled(x, deep, 1), *(scaled(x, deep, 3, dilation=rate) for rate in RATES)]
    whole = scaled(keras().layers.GlobalAveragePooling2D(keepdims=True)(x), deep, 1)
    views.append(keras().layers.UpSampling2D((x.shape[1], x.shape[2]))(whole))  # of one pixel, so no interpolation
    x = scaled(join(views), deep, 1)

    x = join([made.grow(x, deep), scaled(low, made.channels(48), 1)])
    x = scaled(scaled(x, deep, 3), deep, 3)
    x = made.grow(made.grow(x, deep), deep)
    fine = made.conv(made.inputs, made.channels(64), 3, initial="he_uniform")
    fine = made.conv(fine, made.channels(128), 3, initial="he_uniform")
    x = join([x, fine])
    x = made.conv(made.conv(x, deep, 3, initial="he_uniform"), deep, 3, initial="he_uniform")
    return made.model(made.conv(x, CLASSES, 1), "deeplab")


CORI_RATE, DEFAULT_RATE = 1e-5, 1e-4  # run_cori_knl.sh --lr; the default of both training scripts
_NO_DECAY = (
    "The published code declares weight decay and never adds it to its loss; it is left out, and the loss is the same."
)


def sample(dataset: Dataset) -> Sample:
    """Four channels, a label and a weight a pixel, as `decode` delivers them."""
    rows, columns = dataset.manifest.fields[dataset.field_index(["labels"])[0]].shape
    parts = (
        Part("data", "float32", (len(USED), rows, columns)),
        Part("labels", "int32", (rows, columns)),
        Part("weights", "float32", (rows, columns)),
    )
    return Sample(parts, (rows, columns, len(USED)), fields)


def fields(parts: Sequence[Tensor]) -> Fields:
    """Channels go last: processors have no convolution for the delivered order. One copy."""
    from dlio_bench.benchmarks.tensors import tensorflow

    data, labels, weights = parts
    return Fields(tensorflow().transpose(data, (0, 2, 3, 1)), labels, weights)


def loss(outputs: Tensor, given: Fields) -> Tensor:
    """Mean over the pixels of the cross-entropy times the pixel's weight.

    Source: mascarpone-tiramisu-tf-singlefile.py --loss weighted: tf.losses.softmax_cross_entropy(weights=...), which
    divides by the number of weights that are not 0: all of them.
    """
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(given.labels, outputs) * given.weights)


TIRAMISU = Model(
    name="tiramisu",
    title="Tiramisu",
    source="NERSC/DL-Parallel-IO @290ed4a, clim_deep_learn/semanticsegm/tiramisu-tf/mascarpone-tiramisu-tf-"
    "singlefile.py create_tiramisu, run_cori_knl.sh; Kurth et al., arXiv 1810.01993",
    variants=("cori",),
    published_shape=(768, 1152, 4),
    parameters=5_239_635,
    counted=ALL,
    batch=1,
    epochs=3,  # of the I/O study; 150 by default
    sample=sample,
    network=tiramisu,
    loss=loss,
    optimizer=partial(larc_adam, CORI_RATE, clip=CLIPPED_AT_ONE),
    rate=constant(CORI_RATE),
    count=confusion_counts,
    score=confusion_score,
    metric="mean_iou",
    better=HIGHER,
    chance=FREQUENCIES[0] / len(FREQUENCIES),  # background everywhere: its share, and 0 for the other two
    notes=(
        _NO_DECAY,
        "431 012 of its parameters are a step down that is made and never used.",
        "LARC clips its local rate at 1.0, as the code did until November 2018. Until 15 October it also took sums of "
        "gradients over N ranks for means and divided by N once more; here gradients are means, as in the code after.",
    ),
)

DEEPLAB = replace(
    TIRAMISU,
    name="deeplab",
    title="DeepLabv3+",
    source="azrael417/ClimDeepLearn @e046f54, semanticsegm/deeplab-tf/deeplab_model.py (resnet_v2_50, deconv1x), "
    "deeplab-tf-train.py; Kurth et al., arXiv 1810.01993",
    published_shape=(768, 1152, 16),
    parameters=43_669_251,
    epochs=150,
    network=deeplab,
    optimizer=partial(larc_adam, DEFAULT_RATE),
    rate=constant(DEFAULT_RATE),
    notes=(
        _NO_DECAY,
        "Published with 16 channels; CDB's data have the four that its pipeline delivers.",
        "The published loss is a sum over pixels (times 0.1 in large runs); here it is the mean, as for Tiramisu.",
    ),
)
