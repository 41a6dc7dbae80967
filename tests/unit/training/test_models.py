"""The published networks: their size, a step at that size, losses and weights. Needs TensorFlow.

A step of each on its tiny dataset is in test_models_learn.py.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from dlio_bench.benchmarks.cdb.model import tiramisu
from dlio_bench.benchmarks.cosmoflow import model as cosmoflow
from dlio_bench.benchmarks.hepcnnb.model import fields, forward_macs
from dlio_bench.benchmarks.model import (
    HIGHER,
    LOWER,
    Fields,
    Model,
    Part,
    Sample,
    build,
    choose,
    compile_steps,
    keys,
    parameters,
    require_finite,
)
from dlio_bench.benchmarks.networks import Layers
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import Diverged, EnvironmentFailure, UsageError

pytestmark = pytest.mark.slow

MODELS = {model.name: model for workload in WORKLOADS.values() for model in workload.models}
DRAWN = ("hepcnn", "resnet50")  # whose weights tests look at
tf = tensorflow()


def forward_flops(network: Any) -> int:
    """Operations of one sample's forward pass in convolutions and dense layers, as in published counts; a
    multiply-accumulate counts as two, a training step as three passes.
    """
    return 2 * sum(_macs(layer) for layer in network.layers)


def _macs(layer: Any) -> int:
    kind = type(layer).__name__
    if kind in {"Conv2D", "Conv3D", "Dense"}:
        numbers = layer.output.shape[1:]  # each is a sum over the kernel's places and input channels
    elif kind == "Conv2DTranspose":
        numbers = layer.input.shape[1:]  # each goes to all places and output channels of the kernel
    else:
        return 0
    return math.prod([*numbers, *layer.kernel.shape[:-1]])


# size


@pytest.fixture(scope="module")
def published() -> Callable[[str], Any]:
    """The network of a model at its published size, built once. Of most all weights are 0: to draw them takes long."""

    @cache
    def made(name: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if name not in DRAWN:
                patch.setattr(Layers, "_initial", lambda *_: "zeros")
            return build(MODELS[name], MODELS[name].published_shape)

    return made


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_network_has_the_published_number_of_parameters(model: Model, published: Callable[[str], Any]) -> None:
    network = published(model.name)
    assert parameters(model, network) == model.parameters
    assert network.output.dtype == "float32"


def test_the_published_numbers() -> None:
    assert {name: model.parameters for name, model in MODELS.items()} == {
        "hepcnn": 594_178,
        "hepgan": 303_840 + 174_784,
        "tiramisu": 5_239_635,
        "deeplab": 43_669_251,
        "tiramisu-summit": 7_427_923,
        "deeplab-summit": 43_669_251,
        "deepcam": 56_454_720,
        "cosmoflow": 8_907_556,
        "cosmoflow-64": 1_785_282,
        "cosmoflow-sc18": 7_041_186 + 257,  # the log's number, of two targets, and the weights of a third
        "resnet50": 25_557_032,
        "vgg16": 134_268_738,
    }


def test_the_other_forms_of_the_tiramisu_have_their_published_numbers() -> None:
    count = partial(parameters, MODELS["tiramisu"])
    assert count(tiramisu((768, 1152, 16))) == 5_244_819
    sc18 = tiramisu((768, 1152, 16), blocks=(2, 2, 2, 4, 5), growth=32, kernel=5)
    assert count(sc18) == 7_427_923
    # published: 4.188 TF a sample and training step, with what their own counter took in besides
    assert 3 * forward_flops(sc18) == pytest.approx(4.188e12, rel=0.11)


def test_a_step_of_the_tiramisu_that_nothing_uses_is_counted_and_not_trained(published: Callable[[str], Any]) -> None:
    unused = published("tiramisu").non_trainable_variables
    assert sum(math.prod(weight.shape) for weight in unused) == 656 * 656 + 656


def test_the_earlier_forms_of_cosmoflow() -> None:
    count = partial(parameters, MODELS["cosmoflow-sc18"])
    assert count(cosmoflow.early_network((128, 128, 128, 1), targets=2)) == 7_041_186
    # by hand, of the 64^3 generation: (kernel^3, channels before, filters), each with a bias and a scale and shift
    convolutions = [(27, 1, 16), (64, 16, 32), (64, 32, 64), (27, 64, 64), (8, 64, 128), (8, 128, 128)]
    dense = [(1024, 1024), (1024, 256), (256, 2)]
    by_hand = sum(kernel * before * filters + 3 * filters for kernel, before, filters in convolutions)
    by_hand += sum(before * units + units for before, units in dense)
    assert MODELS["cosmoflow-64"].parameters == by_hand


def test_operations_by_hand(published: Callable[[str], Any]) -> None:
    count = {name: forward_flops(published(name)) for name in ("hepcnn", "resnet50", "cosmoflow", "vgg16")}
    assert count["hepcnn"] == 2 * forward_macs()
    assert count["resnet50"] / 2 == pytest.approx(4.09e9, rel=0.001)  # known of version 1.5
    # of VGG16 a patch; a tile of 100 patches takes this on a V100, at an assumed half of its peak
    assert WORKLOADS["wsi"].profiles["v100"].seconds(1) == round(100 * count["vgg16"] / 7.85e12, 3)
    # 27 multiply-accumulates a voxel, channel in and filter, then the fully connected layers
    convolutions = [(128, 4, 32), (64, 32, 64), (32, 64, 128), (16, 128, 256), (8, 256, 512)]
    by_hand = sum(27 * side**3 * before * filters for side, before, filters in convolutions)
    assert count["cosmoflow"] == 2 * (by_hand + 32_768 * 128 + 128 * 64 + 64 * 4)


# a step


@pytest.mark.parametrize("name", ["hepcnn", "resnet50"])
def test_the_published_network_takes_a_step_on_the_published_shape(name: str, published: Callable[[str], Any]) -> None:
    model, network = MODELS[name], published(name)
    with tf.GradientTape() as tape:
        inputs = tf.random.stateless_uniform((1, *model.published_shape), (1, 2))
        outputs = network([inputs, tf.constant(keys(np.array([7]), 0))], training=True)
        loss = model.loss(outputs, Fields(None, tf.constant([1])))
    assert all(np.isfinite(gradient).all() for gradient in tape.gradient(loss, network.trainable_variables))


def test_losses_by_hand() -> None:
    assert float(
        MODELS["hepcnn"].loss(tf.constant([[0.0, 0.0], [0.0, math.log(3)]]), Fields(None, tf.constant([0, 1])))
    ) == (pytest.approx((math.log(2) + math.log(4 / 3)) / 2))
    weighted = Fields(None, tf.constant([[0, 1]]), tf.constant([[0.25, 2.0]]))
    logits = tf.constant([[[0.0, 0.0, 0.0], [0.0, math.log(2), 0.0]]])
    assert float(MODELS["tiramisu"].loss(logits, weighted)) == pytest.approx((0.25 * math.log(3) + 2 * math.log(2)) / 2)
    targets = Fields(None, tf.constant([[1.0, 0.0]]))
    assert float(MODELS["cosmoflow"].loss(tf.constant([[0.0, 3.0]]), targets)) == 5
    assert float(MODELS["cosmoflow-sc18"].loss(tf.constant([[0.0, 3.0]]), targets)) == 2


def test_weight_decay_takes_all_weights_but_those_of_normalisation(published: Callable[[str], Any]) -> None:
    model, network = MODELS["resnet50"], published("resnet50")
    assert model.penalty is not None
    decayed = [v.numpy() for v in network.trainable_variables if v.path.split("/")[-1] not in {"gamma", "beta"}]
    assert float(model.penalty(network)) == pytest.approx(1e-4 * sum(np.square(v).sum() for v in decayed), rel=1e-5)


def test_a_seed_gives_the_same_weights_and_another_seed_others() -> None:
    weights = [
        [v.numpy() for v in build(MODELS["hepcnn"], (16, 16, 3), width=1 / 8, seed=seed).variables]
        for seed in (1, 1, 2**32 - 2)
    ]
    assert all((a == b).all() for a, b in zip(weights[0], weights[1], strict=True))
    assert any((a != b).any() for a, b in zip(weights[0], weights[2], strict=True))
    assert (weights[0][2].std() > 0) & (weights[0][2].ravel()[:9] != weights[0][4].ravel()[:9]).all()


def test_lower_precision_computes_in_it_and_answers_in_single() -> None:
    network = build(MODELS["hepcnn"], (16, 16, 3), width=1 / 8, precision="bfloat16")
    assert {layer.compute_dtype for layer in network.layers if type(layer).__name__ == "Conv2D"} == {"bfloat16"}
    assert {variable.dtype for variable in network.trainable_variables} == {"float32"}
    assert network([np.zeros((1, 16, 16, 3)), np.zeros((1, 2), np.int64)], training=True).dtype == tf.float32
    assert build(MODELS["hepcnn"], (16, 16, 3)).layers[-2].compute_dtype == "float32"
    with pytest.raises(UsageError, match="float64x"):
        build(MODELS["hepcnn"], (16, 16, 3), precision="float64x")


def test_summits_loss_is_a_tenth_of_the_weighted_sum_over_pixels() -> None:
    logits, labels = tf.zeros((2, 3, 5, 3)), tf.zeros((2, 3, 5), tf.int32)
    given = Fields(None, labels, tf.fill((2, 3, 5), 2.0))
    assert float(MODELS["tiramisu-summit"].loss(logits, given)) == pytest.approx(0.1 * 30 * 2 * math.log(3))
    assert float(MODELS["deepcam"].loss(logits, given)) == pytest.approx(2 * math.log(3))
    precisions = [MODELS[name].precision for name in ("tiramisu-summit", "deeplab-summit", "deepcam")]
    assert precisions == ["float16", "float16", "float32"]


def test_gradients_in_half_precision_are_those_in_single() -> None:
    model, draw = MODELS["hepcnn"], np.random.default_rng(1)
    images, labels = draw.random((4, 16, 16, 3), np.float32), np.array([[0], [1], [1], [0]], np.int32)
    sample = Sample((Part("data", "float32", (16, 16, 3)), Part("label", "int32", ())), (16, 16, 3), fields)
    lent = (tf.constant(images.reshape(4, -1)), tf.bitcast(tf.constant(labels), tf.float32))
    found = {}
    for precision in ("float32", "float16"):
        network = build(model, (16, 16, 3), width=1 / 8, dropout=False, precision=precision)
        assert network.compute_dtype == precision
        _, gradients = compile_steps(model, sample, network)[0](lent, tf.zeros((4, 2), tf.int64))
        found[precision] = [gradient.numpy() for gradient in gradients]
    for single, half in zip(found["float32"], found["float16"], strict=True):
        assert np.linalg.norm(single - half) < 0.2 * np.linalg.norm(single)  # some units are on the other side of 0


@pytest.mark.parametrize(
    ("name", "shape"), [("deeplab", (44, 72, 4)), ("deepcam", (44, 72, 16)), ("cosmoflow", (20, 20, 20, 4))]
)
def test_shapes_that_a_network_cannot_take_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"multiple.* of 8.* not {shape[0]}"):
        build(MODELS[name], shape)


# choosing and failing


def test_every_variant_has_a_model_and_names_are_unique() -> None:
    for workload in WORKLOADS.values():
        for variant in workload.variants:
            assert variant in choose(workload.models, variant).variants
    assert len(MODELS) == sum(len(workload.models) for workload in WORKLOADS.values())


def test_models_are_chosen_by_name_and_variant() -> None:
    models = WORKLOADS["cdb"].models
    assert choose(models, "cori").name == "tiramisu"
    assert choose(models, "cori", "deeplab").name == "deeplab"
    with pytest.raises(UsageError, match=r"no model 'deeplap'.*Did you mean 'deeplab'\?"):
        choose(models, "cori", "deeplap")
    with pytest.raises(UsageError, match="takes data of the variants sc18"):
        choose(WORKLOADS["cosmoflow"].models, "mlperf-v1", "cosmoflow-sc18")
    with pytest.raises(UsageError, match="No model takes"):
        choose(models, "other")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_told(loss: float) -> None:
    with pytest.raises(Diverged, match=r"loss of tiramisu is .* at step 12.*learning rate") as raised:
        require_finite(loss, "tiramisu", 12, 0.5)
    assert raised.value.status == EnvironmentFailure.status
    require_finite(3.0, "tiramisu", 12, 0.5)


def test_every_model_says_where_it_comes_from_and_how_it_is_judged() -> None:
    for model in MODELS.values():
        assert "@" in model.source
        assert model.better in {HIGHER, LOWER}
        shape = {"binary_counts": (2,), "confusion_counts": (3,), "top_counts": (1000,)}.get(model.count.__name__)
        targets = ({"cosmoflow-sc18": 3, "cosmoflow-64": 2}.get(model.name, 4),)
        outputs = np.eye(2, *(shape or targets), dtype=np.float32)
        labels = outputs if shape is None else np.array([0, 1])
        assert model.metric in model.score(model.count(outputs, labels))
