"""The GAN of collision events: its images, what they are compared by, its steps, and what is told of them. Needs
TensorFlow; what jets are needs fastjet.
"""

import base64
import io
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace
from PIL import Image

from dlio_bench.batches import Batch
from dlio_bench.benchmarks.hepcnnb import gan, image_quantities
from dlio_bench.benchmarks.hepcnnb.events import BEAM
from dlio_bench.benchmarks.hepcnnb.gan import HEPGAN, overlaps, pool_energy
from dlio_bench.benchmarks.hepcnnb.image_quantities import GEV, SIDE, jets, quantities_of
from dlio_bench.benchmarks.model import Course, Model, build, constant, keys, parameters
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import TRAIN, VALIDATION
from dlio_bench.errors import Diverged, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.training import making
from dlio_bench.harness.training.checkpoint import newest
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions
from dlio_bench.harness.training.network import Checkpoints, NetworkTrainer, widths
from dlio_bench.reports.document.trials import Distance, Generated, Quantity
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.run import generated, html
from tests.datasets import batch_of
from tests.results import Complete, Made

pytestmark = pytest.mark.slow

tf = tensorflow()
Decoded = tuple[Dataset, npt.NDArray[np.uint8]]
BATCH = 8


# images


@pytest.mark.parametrize("bins", [16, 224])
def test_pooling_divides_the_energy_of_the_middle_and_loses_none(bins: int) -> None:
    whole, middle = overlaps(bins, 0, bins), overlaps(bins, bins / 4, bins * 3 / 4)
    np.testing.assert_allclose(whole.sum(axis=0), 1, rtol=1e-5)
    inside = np.arange(bins) // (bins // 4) % 3 != 0
    np.testing.assert_allclose(middle.sum(axis=0), inside, rtol=1e-5)
    # neighbours go to neighbours
    assert np.all(np.diff(whole.argmax(axis=0)) >= 0)


def test_an_image_holds_the_energy_of_both_calorimeters_in_the_published_unit() -> None:
    events = np.zeros((2, 224, 224, 3), np.float32)
    events[0, 0, 57] = 0.5, 0.2, 1.0  # the second pixel of the middle: in the second column, and partly in the first
    events[1, 100, 3] = 1.0  # |eta| > 2.5
    images = pool_energy(tf.constant(events)).numpy()
    # 4e6 MeV are 1
    assert images[0].sum() == pytest.approx(0.5 * BEAM * 1000 / 4e6, rel=1e-5)
    share = 1.75 - 1  # of the pixel, in the first column: columns are 1.75 pixels wide
    assert images[0, 0, :3] == pytest.approx(images[0].sum() * np.array([share, 1 - share, 0]), rel=1e-5)
    assert not images[1].any()
    faint = pool_energy(tf.constant(events * np.float32(1e-4))).numpy()[0, 0]  # 0.325 GeV, no part of which is 0.5
    assert not faint.any()


# what they are compared by


def image(*hits: tuple[int, int, float]) -> npt.NDArray[np.float32]:
    """An image with these energies: row, column, GeV."""
    made = np.zeros((SIDE, SIDE), np.float32)
    for row, column, energy in hits:
        made[row, column] = energy * GEV
    return made


def test_jets_by_hand() -> None:
    pytest.importorskip("fastjet")
    eta = 2.5 / 64  # of column 32
    [jet] = jets(image((32, 32, 300.0)))
    assert (jet.pt(), jet.eta(), jet.phi_std()) == pytest.approx((300 / math.cosh(eta), eta, math.pi / 64), rel=1e-4)
    assert jet.m() == pytest.approx(0, abs=1)
    # two that are 4 pixels of phi apart are one jet, with the mass of two massless particles
    [jet] = jets(image((30, 32, 300.0), (34, 32, 200.0)))
    apart = 4 * 2 * math.pi / 64
    momenta = 300 / math.cosh(eta), 200 / math.cosh(eta)
    assert jet.m() == pytest.approx(math.sqrt(2 * momenta[0] * momenta[1] * (1 - math.cos(apart))), rel=1e-3)
    # far apart two jets; phi has no end: rows 0 and 63 are neighbours
    assert len(jets(image((10, 32, 300.0), (40, 32, 300.0)))) == 2
    assert len(jets(image((0, 32, 150.0), (63, 32, 150.0)))) == 1
    # too little momentum, too far forward
    assert not jets(image((10, 32, 190.0), (40, 61, 3000.0)))


def test_quantities_by_hand() -> None:
    pytest.importorskip("fastjet")
    assert image_quantities.missing() is None
    values = quantities_of(np.stack([image((10, 32, 300.0), (40, 32, 400.0)), image((5, 5, 0.4)), image()]), True)
    assert values[image_quantities.ENERGY] == pytest.approx([700, 0.4, 0], rel=1e-5)
    assert values[image_quantities.PIXELS].tolist() == [2, 0, 0]
    # as published, images without a jet are left out
    assert values[image_quantities.JETS].tolist() == [2]
    assert sorted(values[image_quantities.JET_PT]) == pytest.approx([299.77, 399.7], rel=1e-3)


def test_without_fastjet_the_other_quantities_are_compared_and_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastjet", None)
    image_quantities._fastjet.cache_clear()
    assert "dlio-bench[physics]" in (image_quantities.missing() or "")
    values = quantities_of(np.zeros((1, SIDE, SIDE), np.float32), False)
    assert set(values) == {image_quantities.ENERGY, image_quantities.PIXELS}


@pytest.mark.parametrize("content", ["import no_such_library", "raise OSError('libfastjet.so: \x1b[2J')", ""])
def test_a_fastjet_that_is_there_but_cannot_be_imported_is_told(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fastjet.py").write_text(content)
    monkeypatch.setitem(sys.modules, "fastjet", sys)  # what is there comes back
    del sys.modules["fastjet"]
    monkeypatch.syspath_prepend(tmp_path)
    image_quantities._fastjet.cache_clear()
    why = image_quantities.missing() or ""
    assert why.startswith("no jets: fastjet cannot be imported (")
    assert why.isprintable()


def test_what_one_rank_cannot_measure_no_rank_measures() -> None:
    assert making.why_unmeasured([None, None]) is None
    assert making.why_unmeasured(["no jets", "no jets"]) == "no jets"
    assert making.why_unmeasured([None, "no jets", None]) == "no jets (on 1 of 3 ranks)"


class OneOf(Solo):
    """One of three ranks, the last of which has no fastjet."""

    size = 3

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def allgather(self, value: Any) -> list[Any]:
        return [value, value, "no jets"]


def test_ranks_keep_as_many_samples_as_are_compared_and_agree_on_quantities() -> None:
    kept = 0
    for rank in range(3):
        assert HEPGAN.making is not None
        model = replace(HEPGAN, making=replace(HEPGAN.making, most=8, missing=lambda: None))
        held_out = making.HeldOut(OneOf(rank), model, SimpleNamespace(variables=[]), (SIDE, SIDE, 1))
        held_out.begin(wanted=True)
        held_out.keep_samples(keys(np.arange(10) + 10 * rank, 0), np.zeros((10, SIDE, SIDE), np.float32))
        kept += len(held_out._samples)
        assert held_out._missing == "no jets (on 1 of 3 ranks)"
    assert kept == 8


def test_scores_of_a_pass_by_hand() -> None:
    numbers = np.random.Generator(np.random.Philox(1))
    some = numbers.exponential(1e-3, (40, SIDE, SIDE)).astype(np.float32)
    score, count = image_quantities.image_score, image_quantities.image_counts
    assert set(score(count(some, some)).values()) == {0.0}
    # counts add up over batches
    parts = sum(count(some[part], some[::-1][part] * 100) for part in (slice(0, 7), slice(7, 40)))
    np.testing.assert_array_equal(parts, count(some, some[::-1] * 100))
    assert score(parts)["ks_energy"] == 1
    # half of the images are alike
    assert score(count(some, np.concatenate([some[:20], 100 * some[20:]])))["ks_energy"] == pytest.approx(0.5)
    assert score(count(np.zeros_like(some), some))["ks_pixel_energy"] == 1


def test_distances_by_hand() -> None:
    values = np.arange(1000.0)
    assert making.distance(values, values) == Distance(0, 0)
    assert making.distance(values, values + 5000) == Distance(1, 700)  # p is taken as exp(-700) at least
    quarter = making.distance(values, values + 250)
    assert quarter is not None
    assert quarter.statistic == pytest.approx(0.25)
    # -ln p of Kolmogorov's distribution: 2 exp(-2 z^2), z = 0.25 sqrt(n m / (n + m))
    assert quarter.score == pytest.approx(2 * 0.25**2 * 500 - math.log(2), rel=0.05)
    assert making.distance(values, np.zeros(0)) is None


def test_a_picture_has_made_images_above_held_out_ones() -> None:
    bright, dark = np.ones((3, SIDE, SIDE), np.float32), np.zeros((9, SIDE, SIDE), np.float32)
    with Image.open(io.BytesIO(image_quantities.picture(bright, dark))) as sheet:
        pixels = np.array(sheet)
        assert sheet.format == "PNG"
    upper, lower = pixels[: len(pixels) // 2], pixels[len(pixels) // 2 :]
    assert upper.min() == 255
    assert (lower == 0).sum() == image_quantities.SHOWN * (2 * SIDE) ** 2


# a step


def small(shape: tuple[int, ...], width: float, dropout: bool, seed: int) -> Any:
    """An eighth of the channels."""
    return gan.network(shape, width / 8, dropout, seed)


SMALL = replace(HEPGAN, network=small)


@pytest.fixture(scope="module")
def samples(decoded: Callable[..., Decoded]) -> Decoded:
    return decoded("hepcnnb", "224", {TRAIN: 1, VALIDATION: 3})


def trainer_of(samples: Decoded, *, model: Model = SMALL, **options: Any) -> Any:
    exchange = open_exchange(Solo(), ExchangeOptions())
    sample, course = model.sample(samples[0]), Course(2, BATCH)
    return NetworkTrainer(Solo(), model, sample, course, exchange, device="cpu", seed=2, **options)


@pytest.fixture(scope="module")
def trainer(samples: Decoded, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that keeps checkpoints, compiled once: a trial begins anew."""
    checkpoints = Checkpoints(2, tmp_path_factory.mktemp("kept"), "1x1", {"model": "hepgan"})
    made = trainer_of(samples, checkpoints=checkpoints)
    made.compile([(BATCH, widths(batches(samples, 1)[0]))], [])
    return made


def batches(samples: Decoded, count: int) -> list[Batch]:
    rows = samples[1]
    return [
        Batch(np.arange(BATCH) + BATCH * step, batch_of(rows[BATCH * step :][:BATCH]).blocks) for step in range(count)
    ]


def held_out(samples: Decoded) -> list[Batch]:
    dataset, rows = samples
    first = dataset.training_samples
    return [
        Batch(np.arange(first + 12 * n, first + 12 * n + 12), batch_of(rows[first + 12 * n :][:12]).blocks)
        for n in (0, 1)
    ]


def test_the_networks_have_the_published_parameters() -> None:
    network = build(HEPGAN, HEPGAN.published_shape)
    of_discriminator = sum(math.prod(weight.shape) for weight in network.discriminator.trainable_variables)
    assert of_discriminator == 174_784
    assert parameters(HEPGAN, network) - of_discriminator == 303_840
    made = network([np.zeros((3, SIDE, SIDE, 1)), keys(np.array([1, 2, 1]), 0)], training=False).numpy()
    assert made.shape == (3, SIDE, SIDE)
    assert (made[0] == made[2]).all()  # noise is drawn from the sample's key
    assert (made[0] != made[1]).any()
    assert network.discriminator(made[..., None]).shape == (3,)


def test_a_step_updates_one_network_after_the_other(
    samples: Decoded, trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, states = trainer._network, []
    generator = gan._generator(network)
    statistics = next(weight for weight in network.variables if "moving_mean" in weight.path)
    exchange = trainer._exchange
    reduce = exchange.reduce

    def reduced(gradients: Any) -> Any:
        states.append(([weight.numpy() for weight in generator], [w.numpy() for w in network.discriminator.variables]))
        return reduce(gradients)

    monkeypatch.setattr(exchange, "reduce", reduced)
    trainer.begin("prefetch", 0, 3)
    trainer.step(batches(samples, 1)[0])
    before, between = states
    assert all((a == b).all() for a, b in zip(before[0], between[0], strict=True))
    assert any((a != b).any() for a, b in zip(before[1], between[1], strict=True))
    assert any((a != b.numpy()).any() for a, b in zip(between[0], generator, strict=True))
    # the generator ran twice on the same noise; its statistics moved as if it had run once, by a tenth
    noise = tf.stack([tf.random.stateless_normal((64,), key, alg="philox") for key in keys(np.arange(BATCH), 0, 3)])
    first = tf.nn.conv2d_transpose(
        tf.reshape(noise, (BATCH, 1, 1, 64)), before[0][0], (BATCH, 4, 4, 16), 1, padding="VALID"
    )
    assert statistics.numpy() == pytest.approx(0.1 * tf.reduce_mean(first, (0, 1, 2)).numpy(), rel=1e-3, abs=1e-6)


def test_a_training_goes_on_bit_by_bit_and_what_it_made_is_compared(
    samples: Decoded, trainer: Any, tmp_path: Path
) -> None:
    given, whole = batches(samples, 4), trainer
    whole.begin("prefetch", 0, 7)
    for batch in given:
        whole.step(batch)
        whole.save()
        if batch is given[1]:
            whole._checkpoints.trial_folder("prefetch", 0).rename(tmp_path / "kept")
    scores = []
    for _ in range(2):  # passes: what is held out is kept once
        for batch in held_out(samples):
            whole.forward(batch)
        scores.append(whole.score())
    assert scores[0] == scores[1]
    assert set(scores[0]) == {"ks_energy", "ks_pixels", "ks_pixel_energy"}
    weights = [weight.numpy() for weight in whole._network.variables]
    done = whole.end()
    assert all((a == b.numpy()).all() for a, b in zip(weights, whole._network.variables, strict=True))
    [made] = done.summary.generated
    assert made.samples == 24
    energies = next(quantity for quantity in made.quantities if quantity.name == image_quantities.ENERGY)
    assert energies.before.statistic == 1  # at first every pixel is full
    assert base64.b64decode(made.picture).startswith(generated.PNG)

    found = newest(tmp_path / "kept")
    assert found is not None
    assert found.state.step == 2
    on = trainer_of(samples, resumed=found)
    on.begin("prefetch", 0, 7)
    for batch in given[2:]:
        on.step(batch)
    assert on.end().losses.tolist() == done.losses[2:].tolist()
    assert all((a == b.numpy()).all() for a, b in zip(weights, on._network.variables, strict=True))


def test_distances_on_held_out_images_fall(decoded: Callable[..., Decoded]) -> None:
    """Tiny images, a quarter of the channels, a larger rate. Such a training does not stay where it was good: it is
    looked at several times, and roundings that differ from run to run decide when it is good.
    """
    pytest.importorskip("fastjet")
    dataset, rows = samples = decoded("hepcnnb", "224", {TRAIN: 4, VALIDATION: 8})
    quarter = partial(gan.network, width=1 / 4)
    model = constant(
        replace(HEPGAN, network=lambda shape, _, dropout, seed: quarter(shape, dropout=dropout, seed=seed)), 5e-3
    )
    trainer = trainer_of(samples, model=model)
    trainer.begin("prefetch", 0, 1)
    training = dataset.training_samples
    trainer.forward(Batch(np.arange(training, dataset.samples), batch_of(rows[training:]).blocks))
    order = np.random.default_rng(1).permutation(np.arange(390 * 16) % training).reshape(390, 16)
    seen = []
    for first, last in ((0, 150), (150, 180), (180, 210), (210, 270)):
        for ids in order[first:last]:
            trainer.step(Batch(ids, batch_of(rows[ids]).blocks))
        [made] = trainer.end().summary.generated
        assert made.samples == 64
        chosen = [quantity for quantity in made.quantities if quantity.name in made.combined]
        assert len(chosen) == 3
        assert all(quantity.before.statistic > 0.9 for quantity in chosen)
        before, after = generated.combined_scores(made)
        seen.append((before, after, *(quantity.after.statistic for quantity in chosen)))
        if after < before / 2 and max(seen[-1][2:]) < 0.75:
            break
    else:
        pytest.fail(f"distances, their sums before and behind: {seen}")


@pytest.mark.parametrize("asked", [{"compute": "train:hepgan"}, {"compute": "train", "models": "hepcnn,hepgan"}])
def test_gradients_cannot_come_a_step_late(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--gradient-lag 1: a step of HEP GAN"):
        look_up(Options("hepcnnb", tiny=True, gradient_lag=1, **asked))


def test_without_a_pass_nothing_is_compared_and_it_is_told(samples: Decoded, trainer: Any) -> None:
    trainer.begin("prefetch", 0, 7)
    trainer.step(batches(samples, 1)[0])
    [made] = trainer.end().summary.generated
    assert (made.samples, made.quantities, made.picture) == (0, [], None)
    assert "--validation" in made.missing
    trainer.begin("prefetch", 1, 7)  # another trial than the last
    assert trainer.end().summary.generated == []


def test_made_images_that_hold_no_number_end_the_run(samples: Decoded, trainer: Any) -> None:
    trainer.begin("prefetch", 0, 7)
    weight = trainer._network.variables[0]
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(Diverged, match="hepgan makes is no number"):
        trainer.forward(held_out(samples)[0])
    with pytest.raises(Diverged, match="loss of hepgan is nan at step 0"):
        trainer.step(batches(samples, 1)[0])


def test_held_out_images_that_hold_no_number_are_refused(samples: Decoded, trainer: Any) -> None:
    trainer.begin("prefetch", 0, 7)
    rows = samples[1][:BATCH].copy()
    rows[-1] = 0xFF  # NaN
    with pytest.raises(EnvironmentFailure, match="samples that hepgan compares with hold no number"):
        trainer.forward(Batch(np.arange(BATCH), batch_of(rows).blocks))


# what is told


@pytest.fixture
def shown(made: Complete) -> Callable[..., Made]:
    """shown(...) -> a result of a training that made samples, with changes to what is told of them, and its steps."""

    def result_of(**changed: Any) -> Made:
        def trained(draft: dict[str, Any]) -> None:
            draft["compute"] |= {"mode": "train"}
            for trial in draft["trials"]:
                trial["training"] = {
                    "loss": [1.0], "final_loss": 1.0, "allreduce_seconds": 0.0, "allreduce_bytes": 0,
                    "generated": [to_json(told(**changed))],
                }  # fmt: skip

        return made(trials=1, change=trained)

    return result_of


def told(**changed: Any) -> Generated:
    near, far = Distance(0.25, 10), Distance(1, 700)
    made = Generated(
        samples=24,
        quantities=[
            Quantity(name="energy", before=far, after=near),
            Quantity(name="jets <b>", before=far, after=far),
            Quantity(name="masses", before=far, after=None),
        ],
        combined=["energy", "jets <b>"],
        picture=base64.b64encode(generated.PNG + b"rest").decode(),
    )
    return msgspec.structs.replace(made, **changed)


def test_what_is_told_of_made_samples(shown: Callable[..., Made]) -> None:
    result, steps = shown()
    assert generated.sentence(result) == (
        "24 made samples beside as many held-out ones; -ln p of energy, jets <b> together 1400 to 710; distances "
        "energy 1 to 0.25, jets <b> 1 to 1, masses 1 to no values"
    )
    [(_, rows, picture)] = generated.generated_sections(result)
    assert rows[0] == ["energy", "1", "0.25", "700", "10"]
    assert rows[2] == ["masses", "1", "no values", "700", "-"]
    assert generated.combined_scores(told(combined=["energy", "masses"])) is None
    page = html.page([(result, steps)])
    assert f'src="{picture}"' in page
    assert "jets &lt;b&gt;" in page
    assert "jets <b>" not in page
    assert generated.sentence(shown(samples=0, quantities=[], missing="no pass")[0]) == "no pass"


@pytest.mark.parametrize("text", ['x" onerror="alert(1)', base64.b64encode(b"<svg onload=alert(1)>").decode(), None])
def test_a_picture_that_is_none_is_not_shown(text: str | None, shown: Callable[..., Made]) -> None:
    result, steps = shown(picture=text)
    [(_, _, picture)] = generated.generated_sections(result)
    assert picture is None
    assert "<img" not in html.page([(result, steps)])
