"""VGG16 with two classes on patches of tissue: does a patch show lymphocytes or not."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.atomic_files import write_whole
from dlio_bench.benchmarks.model import ALL, HIGHER, Counts, Cutting, Fields, Model, Part, Sample, Tensor, cross_entropy
from dlio_bench.benchmarks.schedules import constant
from dlio_bench.benchmarks.wsi.decode import side_of_patch
from dlio_bench.benchmarks.wsi.layout import COLOURS, PLACES, TILES
from dlio_bench.benchmarks.wsi.slides import TilePlace
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import hdf5

# What was predicted of each patch: the published text files, and how far two predictions agree.
#
# Source: til_classification @c98db4c, u24_lymphocyte/prediction/lymphocyte/pred_by_external_model.py; anagainaru/
# medical_DNN @49b98c0, quip_classification/correctness/README.md (Dice of the positive patches: 1.0).

Probabilities = npt.NDArray[np.float32]

PREDICTIONS_FILE = "patch-level-lym.txt"
THRESHOLD = 0.42  # of a positive patch: sa_testers/config_vgg-mix_test_ext.ini


def probabilities(outputs: npt.NDArray[np.float32]) -> Probabilities:
    """The sigmoid of the last of the logits [patches, classes]: float32 [patches]."""
    return np.asarray(1 / (1 + np.exp(-outputs[:, -1].astype(np.float64))), dtype=np.float32)


def write_predictions(dataset: Dataset, by_tile: Mapping[int, Probabilities], folder: Path) -> None:
    """A folder for each slide with a predicted tile, PREDICTIONS_FILE in it. OSError; DataError for a slide's file."""
    for number, entry in enumerate(dataset.manifest.files):
        tiles = [tile for tile in range(entry.samples) if entry.first + tile in by_tile]
        if not tiles:
            continue
        places = np.frombuffer(hdf5.read_field(dataset.path(number), PLACES), "<i4").reshape(-1, 4)
        text = "".join(
            line for tile in tiles for line in lines(TilePlace(*places[tile].tolist()), by_tile[entry.first + tile])
        )
        slide = folder / Path(entry.name).stem
        slide.mkdir(parents=True, exist_ok=True)
        write_whole(slide / PREDICTIONS_FILE, text.encode())


def lines(place: TilePlace, values: Probabilities) -> Iterator[str]:
    """`x y probability` of each patch of a tile: its middle, in pixels of the slide."""
    side = round(len(values) ** 0.5)
    step = place.width / side
    for number, value in enumerate(values.tolist()):
        column, row = divmod(number, side)
        yield f"{round(place.x + (column + 0.5) * step)} {round(place.y + (row + 0.5) * step)} {value:.9g}\n"


def agreement(some: Mapping[int, Probabilities], others: Mapping[int, Probabilities]) -> dict[str, float]:
    """Dice coefficient of the positive patches of two predictions of the same tiles, and the largest difference.

    2 |A and B| / (|A| + |B|), 1 where neither has any.
    """
    ids = sorted(some)
    first, second = (np.concatenate([of[tile] for tile in ids]) for of in (some, others))
    positive = first >= THRESHOLD, second >= THRESHOLD
    both, either = np.count_nonzero(positive[0] & positive[1]), sum(map(np.count_nonzero, positive))
    return {"dice": 2 * both / either if either else 1.0, "difference": float(np.abs(first - second).max(initial=0))}


CLASSES, SIDE = 2, 224
TINY_SIDE = 32  # pixels that a patch of the tiny dataset is resized to: the least that five poolings leave something of
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters and convolutions
HIDDEN, DROPPED = 4096, 0.25  # keep_prob 0.75
LEAST = 96  # patches of a batch: til_classification, conf/variables.sh
RATE = 5e-5


def sample(dataset: Dataset) -> Sample:
    """Flags and pixels of a tile's patches, as `decode` delivers them; patches are resized on the way in."""
    patch, side = piece(dataset), TINY_SIDE if dataset.manifest.tiny else SIDE
    [rows] = [field.shape[0] for field in dataset.manifest.fields if field.name == TILES]
    count = (rows // side_of_patch(dataset)) ** 2

    def fields(parts: Sequence[Tensor]) -> Fields:
        return network_input(parts[-1], side_of_patch(dataset), side)

    parts = (Part("kept", "int32", (count,)), Part("patches", "int32", (count, patch.words)))
    return Sample(parts, (side, side, COLOURS), fields)


def piece(dataset: Dataset) -> Part:
    """One patch: its bytes, uint8 [side, side, 3], four in a number."""
    return Part("patches", "int32", (side_of_patch(dataset) ** 2 * COLOURS // 4,))


def network_input(words: Tensor, patch: int, side: int) -> Fields:
    """Patches of `patch` pixels, in words, as float32 [n, side, side, 3] from -1 to 1. Nobody has labelled them.

    Source: til_classification @c98db4c, sa_testers/sa_net_test_classifier_external_input.py: clip, /255, -.5, *2,
    resize.
    """
    from dlio_bench.benchmarks.tensors import tensorflow

    tf = tensorflow()
    pixels = tf.reshape(tf.bitcast(words, tf.uint8), (-1, patch, patch, COLOURS))
    scaled = (tf.clip_by_value(tf.cast(pixels, tf.float32), 0, 255) / 255 - 0.5) * 2
    # as TensorFlow 1 did
    inputs = tf.compat.v1.image.resize(scaled, (side, side), method="bilinear", align_corners=False)
    return Fields(inputs, tf.zeros((tf.shape(inputs)[0],), tf.int32))


def network(shape: tuple[int, ...], width: float = 1, dropout: bool = True, seed: int = 0) -> Any:
    """Logits [n, 2] of images of 32 pixels a side or more."""
    from dlio_bench.benchmarks.networks import Layers, keras

    made = Layers(shape, width=width, dropout=dropout, seed=seed)
    relu = keras().activations.relu
    x = made.inputs
    for filters, convolutions in STAGES:
        for _ in range(convolutions):
            x = relu(made.conv(x, made.channels(filters), 3))
        x = made.pool(x, "max")
    x = keras().layers.Flatten()(x)
    for _ in range(2):
        x = made.drop(relu(made.dense(x, made.channels(HIDDEN))), DROPPED)
    return made.model(made.dense(x, CLASSES), "vgg16")


def optimizer() -> Any:
    """Adam."""
    from dlio_bench.benchmarks.networks import keras

    return keras().optimizers.Adam(RATE)


def count(outputs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Counts:
    """Of logits [n, classes]: how many, and how many are positive."""
    del labels
    positive = probabilities(outputs) >= THRESHOLD
    return np.array([len(outputs), np.count_nonzero(positive)], dtype=np.float64)


def score(sums: Counts) -> dict[str, float]:
    """The share of positive patches among those that were classified, and their number."""
    return {"positive_share": float(sums[1] / sums[0]), "classified_patches": float(sums[0])}


VGG16 = Model(
    name="vgg16",
    title="VGG16",
    source="til_classification @c98db4c, sa_testers/sa_net_test_classifier_external_input.py, "
    "config_vgg-mix_test_ext.ini; u24_lymphocyte/prediction/lymphocyte/pred_by_external_model.py",
    variants=("til",),
    published_shape=(SIDE, SIDE, COLOURS),
    parameters=134_268_738,  # by the layers: 138 357 544 for 1000 classes
    counted=ALL,
    batch=128,
    epochs=200,
    sample=sample,
    network=network,
    loss=cross_entropy,
    optimizer=optimizer,
    rate=constant(RATE),
    count=count,
    score=score,
    metric="positive_share",
    better=HIGHER,
    chance=None,
    cutting=Cutting(of=piece, least=LEAST, values=probabilities, write=write_predictions, agree=agreement),
    notes=(
        "Slides are synthetic: glass, stained tissue and nuclei; two patches in three or so are classified.",
        "Slides beyond the published twelve have as many tiles as one of these, drawn once for all datasets.",
        "A slide is one HDF5 file of raw tiles. Published: a PNG file a tile, or a step of ADIOS2 a tile.",
        "All tiles are whole: published ones are clipped at the slide's edges.",
        "The published model starts anew after each 100 batches; here it stays.",
        "Published stages wait for each other through files (extraction_done.txt); here they do not.",
        "Weights are drawn with He's variance, so that probabilities of an untrained network differ.",
        "Slides have no labels: it predicts only (--compute infer).",
        "Tiny slides are one tile of 4 patches of 50 x 50 pixels, resized to 32 x 32.",
    ),
)
