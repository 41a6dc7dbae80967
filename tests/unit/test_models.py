"""The published networks: their size, a step on the tiny datasets, and what their parts compute. Needs TensorFlow."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.batches import ALIGNMENT, Batch, Block
from dlio_bench.benchmarks.cdb import tiramisu
from dlio_bench.benchmarks.cosmoflow import model as cosmoflow
from dlio_bench.benchmarks.hepcnnb.operations import forward_macs
from dlio_bench.benchmarks.larc import larc_adam
from dlio_bench.benchmarks.model import (
    HIGHER,
    LOWER,
    Fields,
    Model,
    Part,
    build,
    choose,
    keys,
    objective,
    parameters,
    require_finite,
    traced,
)
from dlio_bench.benchmarks.networks import Layers
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.tensor_batches import lend, shared, unpacked
from dlio_bench.benchmarks.tensors import array, tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import TRAIN
from dlio_bench.errors import DataError, Diverged, EnvironmentFailure, UsageError

Decoded = tuple[Dataset, npt.NDArray[np.uint8]]
MODELS = {model.name: model for workload in WORKLOADS.values() for model in workload.models}
FORMS = [
    pytest.param(model, workload, variant, id=f"{model.name}-{variant}")
    for workload in WORKLOADS.values()
    for model in workload.models
    for variant in model.variants
]
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


@pytest.fixture(scope="module")
def tiny(decoded: Callable[[str, str, Mapping[str, int]], Decoded]) -> Callable[[str, str], Decoded]:
    """(workload, variant) -> a few decoded samples, made once."""
    made: dict[tuple[str, str], Decoded] = {}

    def find(workload: str, variant: str) -> Decoded:
        if (workload, variant) not in made:
            few = {"cdb": 3, "cosmoflow": 3, "imagenet": 3}.get(workload, 1) if variant != "sc18" else 1
            made[workload, variant] = decoded(workload, variant, {TRAIN: 1 if variant == "tfrecord" else few})
        return made[workload, variant]

    return find


def batch_of(samples: npt.NDArray[np.uint8], *, ids: list[int] | None = None, shift: int = 0) -> Batch:
    """Samples [n, bytes] as a reader delivers them: one block in memory that starts `shift` bytes off alignment."""
    raw = np.empty(samples.size + 2 * ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT + shift
    content = raw[start : start + samples.size]
    content.reshape(samples.shape)[:] = samples
    chosen = np.arange(len(samples)) if ids is None else np.array(ids)
    return Batch(chosen, (Block(content, np.arange(len(samples) + 1) * samples.shape[1]),))


# size


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_network_has_the_published_number_of_parameters(model: Model) -> None:
    network = build(model, model.published_shape)
    assert parameters(model, network) == model.parameters
    assert network.output.dtype == "float32"


def test_the_published_numbers() -> None:
    assert {name: model.parameters for name, model in MODELS.items()} == {
        "hepcnn": 594_178,
        "tiramisu": 5_239_635,
        "deeplab": 43_669_251,
        "cosmoflow": 8_907_556,
        "cosmoflow-sc18": 7_041_186 + 257,  # the log's number, of two targets, and the weights of a third
        "resnet50": 25_557_032,
    }


def test_the_other_forms_of_the_tiramisu_have_their_published_numbers() -> None:
    count = partial(parameters, MODELS["tiramisu"])
    assert count(tiramisu.network((768, 1152, 16))) == 5_244_819
    sc18 = tiramisu.network((768, 1152, 16), blocks=(2, 2, 2, 4, 5), growth=32, kernel=5)
    assert count(sc18) == 7_427_923
    # published: 4.188 TF a sample and training step, with what their own counter took in besides
    assert 3 * forward_flops(sc18) == pytest.approx(4.188e12, rel=0.11)


def test_a_step_of_the_tiramisu_that_nothing_uses_is_counted_and_not_trained() -> None:
    network = tiramisu.network((768, 1152, 4))
    assert sum(math.prod(weight.shape) for weight in network.non_trainable_variables) == 656 * 656 + 656


def test_the_earlier_forms_of_cosmoflow() -> None:
    count = partial(parameters, MODELS["cosmoflow-sc18"])
    assert count(cosmoflow.early_network((128, 128, 128, 1), targets=2)) == 7_041_186


def test_operations_by_hand() -> None:
    count = {name: forward_flops(build(model, model.published_shape)) for name, model in MODELS.items()}
    assert count["hepcnn"] == 2 * forward_macs()
    assert count["resnet50"] / 2 == pytest.approx(4.09e9, rel=0.001)  # known of version 1.5
    # 27 multiply-accumulates a voxel, channel in and filter, then the fully connected layers
    convolutions = [(128, 4, 32), (64, 32, 64), (32, 64, 128), (16, 128, 256), (8, 256, 512)]
    by_hand = sum(27 * side**3 * before * filters for side, before, filters in convolutions)
    assert count["cosmoflow"] == 2 * (by_hand + 32_768 * 128 + 128 * 64 + 64 * 4)


# a step


@pytest.mark.parametrize(
    ("model", "workload", "variant"), [form for form in FORMS if form.values[0].variants[0] == form.values[2]]
)
def test_a_network_takes_a_step_on_the_tiny_dataset(
    model: Model, workload: Any, variant: str, tiny: Callable[[str, str], Decoded]
) -> None:
    dataset, samples = tiny(workload.name, variant)
    sample = model.sample(dataset)
    network = build(model, sample.shape, width=1 / 4)  # of the published width are those whose parameters are counted
    batch = batch_of(samples[:2])
    train, evaluate = traced(model, sample, network)
    outputs, labels = evaluate(lend(batch))
    assert np.isfinite(outputs).all()
    assert np.isfinite(list(model.score(model.count(outputs.numpy(), labels.numpy())).values())).all()
    loss, gradients = train(lend(batch), tf.constant(keys(batch.ids, 0)))
    require_finite(float(loss), model.name, 0, 1.0)
    assert len(gradients) == len(network.trainable_variables)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert sum(bool(np.any(gradient)) for gradient in gradients) >= 0.8 * len(gradients)  # by chance some are 0
    before = [variable.numpy() for variable in network.trainable_variables]
    optimizer = model.optimizer()
    optimizer.apply(gradients, network.trainable_variables)
    changed = [
        bool((variable.numpy() != old).any()) for variable, old in zip(network.trainable_variables, before, strict=True)
    ]
    assert sum(changed) >= 0.8 * len(changed)


@pytest.mark.parametrize("name", ["hepcnn", "resnet50"])
def test_the_published_network_takes_a_step_on_the_published_shape(name: str) -> None:
    model = MODELS[name]
    network = build(model, model.published_shape)
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


def test_weight_decay_takes_all_weights_but_those_of_normalisation() -> None:
    model = MODELS["resnet50"]
    network = build(model, (32, 32, 3), width=1 / 16)
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
    network = build(MODELS["hepcnn"], (16, 16, 3), width=1 / 8, precision="mixed_bfloat16")
    assert {layer.compute_dtype for layer in network.layers if type(layer).__name__ == "Conv2D"} == {"bfloat16"}
    assert {variable.dtype for variable in network.trainable_variables} == {"float32"}
    assert network([np.zeros((1, 16, 16, 3)), np.zeros((1, 2), np.int64)], training=True).dtype == tf.float32
    assert build(MODELS["hepcnn"], (16, 16, 3)).layers[-2].compute_dtype == "float32"
    with pytest.raises(UsageError, match="float64x"):
        build(MODELS["hepcnn"], (16, 16, 3), precision="float64x")


@pytest.mark.parametrize(("name", "shape"), [("deeplab", (44, 72, 4)), ("cosmoflow", (20, 20, 20, 4))])
def test_shapes_that_a_network_cannot_take_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"multiple.* of 8.* not {shape[0]}"):
        build(MODELS[name], shape)


# delivered bytes


@pytest.mark.parametrize(("model", "workload", "variant"), FORMS)
def test_the_parts_of_a_sample_are_its_delivered_bytes(
    model: Model, workload: Any, variant: str, tiny: Callable[[str, str], Decoded]
) -> None:
    dataset, samples = tiny(workload.name, variant)
    sample = model.sample(dataset)
    assert sum(part.words for part in sample.parts) * 4 == samples.shape[1]
    for count in (1, 2):
        found = unpacked(lend(batch_of(samples[:count])), sample.parts)
        rows = [np.asarray(part).reshape(count, -1).view(np.uint8) for part in found]
        np.testing.assert_array_equal(np.concatenate(rows, axis=1), samples[:count])
        assert [(part.dtype.name, tuple(part.shape[1:])) for part in found] == [
            (part.dtype, part.shape) for part in sample.parts
        ]


@pytest.mark.parametrize(("model", "workload", "variant"), FORMS)
def test_a_batch_in_several_blocks_is_the_same_batch(
    model: Model, workload: Any, variant: str, tiny: Callable[[str, str], Decoded]
) -> None:
    dataset, samples = tiny(workload.name, variant)
    sample = model.sample(dataset)
    ends = np.cumsum([4 * part.words for part in sample.parts])[:-1]
    columns = np.split(samples[:2], ends, axis=1)
    batch = Batch(np.arange(2), tuple(Block.even(column) for column in columns))
    one, several = (unpacked(lend(each), sample.parts) for each in (batch_of(samples[:2]), batch))
    for a, b in zip(one, several, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_networks_are_given_what_their_decode_delivers(tiny: Callable[[str, str], Decoded]) -> None:
    def given(workload: str, variant: str) -> tuple[Fields, npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        dataset, samples = tiny(workload, variant)
        sample = choose(WORKLOADS[workload].models, variant).sample(dataset)
        found = sample.fields(unpacked(lend(batch_of(samples[:2])), sample.parts))
        assert tuple(found.inputs.shape) == (2, *sample.shape)
        return found, samples[:2].view(np.float32), samples[:2].view(np.int32)

    found, floats, integers = given("hepcnnb", "224")
    np.testing.assert_array_equal(np.ravel(found.inputs), floats[:, :768].ravel())
    np.testing.assert_array_equal(found.labels, integers[:, 768])
    found, floats, integers = given("cdb", "cori")
    pixels = 48 * 72
    np.testing.assert_array_equal(np.asarray(found.inputs)[1, ..., 3].ravel(), floats[1, 3 * pixels : 4 * pixels])
    np.testing.assert_array_equal(np.asarray(found.labels)[1].ravel(), integers[1, 4 * pixels : 5 * pixels])
    np.testing.assert_array_equal(np.asarray(found.weights)[1].ravel(), floats[1, 5 * pixels :])
    found, floats, integers = given("imagenet", "tfrecord")
    blocks = floats[:, :-1].reshape(2, 32, 7, 32, 7, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(found.inputs, blocks, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found.labels, integers[:, -1] - 1)
    assert np.asarray(found.labels).min() >= 0
    found, floats, _ = given("cosmoflow", "sc18")
    np.testing.assert_array_equal(found.labels, floats[:, -3:])


def test_lent_memory_is_the_readers_own() -> None:
    batch = batch_of(np.arange(2 * 64, dtype=np.uint8).reshape(2, 64))
    (lent,) = lend(batch)
    assert shared(batch)
    assert array(lent).ctypes.data == batch.blocks[0].data.ctypes.data


def test_a_single_samples_parts_are_no_copies() -> None:
    parts = [Part("a", "float32", (16,)), Part("b", "int32", (4, 4))]
    batch = batch_of(np.arange(128, dtype=np.uint8)[None])
    a, b = unpacked(lend(batch), parts)
    assert array(a).ctypes.data == batch.blocks[0].data.ctypes.data
    assert array(b).ctypes.data == batch.blocks[0].data.ctypes.data + 64


@pytest.mark.parametrize("why", ["misaligned", "read-only"])
def test_memory_that_cannot_be_shared_is_copied(why: str) -> None:
    batch = batch_of(np.arange(2 * 64, dtype=np.uint8).reshape(2, 64), shift=16 if why == "misaligned" else 0)
    if why == "read-only":
        batch.blocks[0].data.flags.writeable = False
    (lent,) = lend(batch)
    assert not shared(batch)
    assert array(lent).ctypes.data != batch.blocks[0].data.ctypes.data
    assert lent.numpy().tobytes() == batch.blocks[0].data.tobytes()


def test_samples_of_another_size_are_refused() -> None:
    with pytest.raises(DataError, match="64 bytes were delivered where image have 48"):
        unpacked(lend(batch_of(np.zeros((2, 64), np.uint8))), [Part("image", "float32", (12,))])
    uneven = Batch(np.arange(2), (Block(np.zeros(64, np.uint8), np.array([0, 24, 64])),))
    with pytest.raises(DataError, match="different sizes"):
        lend(uneven)
    halves = Batch(np.arange(1), (Block.even(np.zeros((1, 8), np.float32)), Block.even(np.zeros((1, 8), np.float32))))
    with pytest.raises(DataError, match="'image' is cut in two"):
        unpacked(lend(halves), [Part("image", "float32", (16,))])


# dropout


def dropped(ids: list[int], step: int, *, layer: int = 0, seed: int = 0, rate: float = 0.25) -> npt.NDArray[Any]:
    """What dropout makes of ones, [n, 40, 50]."""
    made = Layers((40, 50), width=1, dropout=True, seed=0)
    for _ in range(layer):
        made.drop(made.inputs, rate)
    network = made.model(made.drop(made.inputs, rate), "dropout")
    found = network([np.ones((len(ids), 40, 50), np.float32), keys(np.array(ids), step, seed)], training=True)
    return np.asarray(found)


def test_masks_depend_on_the_sample_not_on_its_place() -> None:
    together = dropped([5, 9, 2, 7], 3)
    for ids in ([5, 9], [2], [7, 2]):  # as two or four ranks would have them
        for place, number in enumerate(ids):
            np.testing.assert_array_equal(dropped(ids, 3)[place], together[[5, 9, 2, 7].index(number)])


def test_masks_of_other_samples_steps_layers_and_seeds_are_others() -> None:
    found = [*dropped([5, 6], 3), *dropped([5], 4), *dropped([5], 3, layer=1), *dropped([5], 3, seed=1)]
    kept = [mask.astype(bool).ravel() for mask in found]
    for number, one in enumerate(kept):
        for other in kept[:number]:
            assert np.mean(one & other) == pytest.approx(0.75**2, abs=0.06)  # as of independent masks


def test_a_share_is_dropped_and_the_rest_makes_up_for_it() -> None:
    found = dropped(list(range(20)), 0)
    assert set(np.unique(found)) == {0, np.float32(1 / 0.75)}
    assert np.mean(found == 0) == pytest.approx(0.25, abs=0.01)


def test_dropout_can_be_left_out_and_is_off_in_evaluation() -> None:
    inputs = [np.random.default_rng(1).random((2, 16, 16, 3), np.float32), keys(np.array([1, 2]), 0)]
    for dropout, differs in ((True, True), (False, False)):
        network = build(MODELS["hepcnn"], (16, 16, 3), width=1 / 8, dropout=dropout)
        other = [inputs[0], keys(np.array([3, 4]), 9)]
        trained = [network(each, training=True).numpy() for each in (inputs, other)]
        assert bool((trained[0] != trained[1]).any()) == differs
        assert (network(inputs, training=False).numpy() == network(other, training=False).numpy()).all()


def test_gradients_of_a_batch_are_the_mean_over_its_halves(tiny: Callable[[str, str], Decoded]) -> None:
    # with dropout on: what makes training on several ranks the same as on one
    model = MODELS["cosmoflow"]
    dataset, samples = tiny("cosmoflow", "mlperf-v0.7")
    samples = np.concatenate([samples, samples[:1]])
    sample = model.sample(dataset)
    network = build(model, sample.shape, width=1 / 4)

    def gradients(chosen: slice, ids: list[int]) -> list[Any]:
        with tf.GradientTape() as tape:
            lent = lend(batch_of(samples[chosen]))
            loss, _ = objective(model, sample, network, lent, keys(np.array(ids), 5), training=True)
        return [gradient.numpy() for gradient in tape.gradient(loss, network.trainable_variables)]

    whole = gradients(slice(0, 4), [0, 1, 2, 3])
    halves = [gradients(slice(0, 2), [0, 1]), gradients(slice(2, 4), [2, 3])]
    for one, first, second in zip(whole, *halves, strict=True):
        np.testing.assert_allclose(one, (first + second) / 2, rtol=1e-3, atol=1e-6)


# LARC


def test_larc_is_adam_over_scaled_gradients() -> None:
    draw = np.random.default_rng(4)
    start = {"large": draw.normal(0, 1, (4, 5)), "small": draw.normal(0, 1e-4, (3,)), "zero": np.zeros(2)}
    rate, trust, least = 1e-3, 0.002, 1 / 16000
    expected = {name: value.copy() for name, value in start.items()}
    means = {name: np.zeros_like(value) for name, value in start.items()}
    squares = {name: np.zeros_like(value) for name, value in start.items()}
    variables = [tf.keras.Variable(value.astype(np.float32), name=name) for name, value in start.items()]
    optimizer = larc_adam(rate)
    for step in range(1, 6):
        gradients = {name: draw.normal(0, 10.0 ** draw.integers(-3, 2), value.shape) for name, value in start.items()}
        if step == 3:
            gradients["large"][:] = 0
        for name, gradient in gradients.items():
            norms = np.linalg.norm(expected[name]), np.linalg.norm(gradient)
            local = trust * norms[0] / norms[1] if min(norms) > 0 else least
            scaled = gradient * min(local, rate) / rate
            means[name] = 0.9 * means[name] + 0.1 * scaled
            squares[name] = 0.999 * squares[name] + 0.001 * scaled**2
            corrected = means[name] / (1 - 0.9**step), squares[name] / (1 - 0.999**step)
            # TensorFlow's epsilon is beside the uncorrected root
            expected[name] -= rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-8 / np.sqrt(1 - 0.999**step))
        optimizer.apply([tf.constant(g, tf.float32) for g in gradients.values()], variables)
    for variable in variables:
        moved = variable.numpy() - start[variable.name]
        np.testing.assert_allclose(moved, expected[variable.name] - start[variable.name], rtol=1e-3, atol=1e-8)


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
        targets = (3,) if model.name == "cosmoflow-sc18" else (4,)
        outputs = np.eye(2, *(shape or targets), dtype=np.float32)
        labels = outputs if shape is None else np.array([0, 1])
        assert model.metric in model.score(model.count(outputs, labels))
