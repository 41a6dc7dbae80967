"""ResNet-50 v1.5 on ImageNet."""

from collections.abc import Sequence
from typing import Any

from dlio_bench.benchmarks import schedules
from dlio_bench.benchmarks.imagenet.decode import COLOURS, SIDE
from dlio_bench.benchmarks.imagenet.layout import CLASSES
from dlio_bench.benchmarks.metrics import top_counts, top_score
from dlio_bench.benchmarks.model import HIGHER, TRAINABLE, Fields, Model, Part, Sample, Tensor, cross_entropy
from dlio_bench.datagen.dataset import Dataset

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # filters and blocks
MOMENTUM, EPSILON, DECAY = 0.9, 1e-5, 1e-4
TINY_SIDE = 32  # pixels that an image of the tiny dataset is averaged down to


def sample(dataset: Dataset) -> Sample:
    """Image and label, as `decode` delivers them; those of the tiny dataset are made 32 x 32 on the way in."""
    parts = (Part("image", "float32", (SIDE, SIDE, COLOURS)), Part("label", "int32", ()))
    if dataset.manifest.tiny:
        return Sample(parts, (TINY_SIDE, TINY_SIDE, COLOURS), tiny_fields)
    return Sample(parts, (SIDE, SIDE, COLOURS), fields)


def fields(parts: Sequence[Tensor]) -> Fields:
    """Images, and labels from 0 on: stored ones count from 1."""
    image, label = parts
    return Fields(image, label - 1)


def tiny_fields(parts: Sequence[Tensor]) -> Fields:
    """As above, of images that are averaged over 7 x 7 pixels: their files have no more detail."""
    from dlio_bench.benchmarks.tensors import tensorflow

    image, label = parts
    return fields((tensorflow().nn.avg_pool2d(image, SIDE // TINY_SIDE, SIDE // TINY_SIDE, "VALID"), label))


def network(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """Logits [n, 1000] of images of 32 pixels a side or more. There is no dropout.

    Version 1.5: where a stage halves its maps, it is the 3 x 3 convolution of its first block that does so.
    """
    from dlio_bench.benchmarks.networks import Layers, keras

    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    layers, relu = keras().layers, keras().activations.relu

    def normalised(x: Tensor, filters: int, kernel: int, stride: int = 1, padding: str = "same") -> Tensor:
        x = made.conv(x, filters, kernel, stride=stride, padding=padding, bias=False)
        return layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)(x)

    def block(x: Tensor, filters: int, stride: int, *, first: bool) -> Tensor:
        y = relu(normalised(x, filters, 1))
        y = relu(normalised(y, filters, 3, stride))
        y = normalised(y, 4 * filters, 1)
        return relu(layers.Add()([y, normalised(x, 4 * filters, 1, stride) if first else x]))

    x = layers.ZeroPadding2D(3, data_format="channels_last")(made.inputs)
    x = relu(normalised(x, made.channels(64), 7, stride=2, padding="valid"))
    x = made.pool(x, "max", size=3, stride=2, padding="same")
    for stage, (filters, blocks) in enumerate(STAGES):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            x = block(x, made.channels(filters), stride, first=not number)
    x = layers.GlobalAveragePooling2D()(x)
    start = keras().initializers.RandomNormal(stddev=0.01, seed=made.seed())
    return made.model(made.dense(x, CLASSES, initial=start), "resnet50")


def penalty(network: Any) -> Tensor:
    """Weight decay: 1e-4 times the squares of all weights but those of batch normalisation (an L2 regulariser)."""
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    decayed = [
        tf.cast(variable.value, "float32")
        for layer in network.layers
        if type(layer).__name__ in {"Conv2D", "Dense"}
        for variable in layer.trainable_variables
    ]
    return DECAY * tf.add_n([tf.reduce_sum(tf.square(variable)) for variable in decayed])


def optimizer() -> Any:
    """Gradient descent with momentum."""
    from dlio_bench.benchmarks.networks import keras

    return keras().optimizers.SGD(0.1, momentum=0.9)


RESNET_50 = Model(
    name="resnet50",
    title="ResNet-50 v1.5",
    source="tensorflow/models @1fdfd97, official/vision/image_classification/resnet/resnet_model.py, common.py",
    variants=("tfrecord", "raw"),
    published_shape=(SIDE, SIDE, COLOURS),
    parameters=25_557_032,  # for 1000 classes; the source has 1001, one of them for the background
    counted=TRAINABLE,
    batch=64,
    epochs=90,
    sample=sample,
    network=network,
    loss=cross_entropy,
    optimizer=optimizer,
    rate=schedules.resnet,
    count=top_counts,
    score=top_score,
    metric="top_1",
    better=HIGHER,
    chance=1 / CLASSES,
    penalty=penalty,
    notes=("It has 1000 classes; the published code has one more, for the background, which no label names.",),
)
