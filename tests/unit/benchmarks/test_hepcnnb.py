"""HEPCNNB's simulated events: densities, ranges, what tells signal from background, and that events are their own."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from dlio_bench.benchmarks.hepcnnb import events
from dlio_bench.benchmarks.hepcnnb.layout import layout
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, VALIDATION

pytestmark = pytest.mark.slow

SEED = 3
PUBLISHED = MappingProxyType({"train": (709, 426_926_240), "validation": (94, 56_607_048)})
NAMES = ("data", "label", "weight", "normweight", "psr", "mg", "mn", "jz", "eid")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """The datasets of a training file of 400 events."""
    made = layout(False, PHYSICAL)
    path = tmp_path_factory.mktemp("hep") / "a.h5"
    made.write(path, replace(made.spec_files(1)[0], samples=400), SEED)
    with h5py.File(path) as file:
        yield {name: file[name][()] for name in NAMES}
    path.unlink()


def test_both_splits_have_the_published_files() -> None:
    made = layout(False, PHYSICAL)
    for split in made.splits:
        samples, size = PUBLISHED[split.name]
        assert (split.full_files, split.full_samples) == (1024, 1024 * samples)
        assert (split.samples_per_file, split.file_bytes) == (samples, size)
        assert split.spec_files(3)[2].name == f"hep_{split.name}_chunk2.h5"
    assert sum(split.full_files * split.file_bytes for split in made.splits) == pytest.approx(495.1e9, rel=1e-3)


@pytest.mark.parametrize("fill", [PHYSICAL, RANDOM])
def test_a_validation_file_is_laid_out_as_published(fill: str, tmp_path: Path) -> None:
    made = layout(False, fill)
    spec = made.files({"train": 1, VALIDATION: 1})[1]
    assert (spec.first, spec.split) == (709, VALIDATION)
    written = made.write(tmp_path / "a", spec, SEED)
    assert (tmp_path / "a").stat().st_size == 56_607_048
    assert (tmp_path / "a").stat().st_blocks * 512 >= 56_607_048  # no holes
    with h5py.File(tmp_path / "a") as file:
        assert sorted(file, key=lambda name: file[name].id.get_offset()) == list(NAMES)
        for column, name in enumerate(NAMES):
            assert file[name].id.get_offset() == written.extents[0, column, 0]
            assert crc32c(file[name][93].tobytes()) == written.checksums[93, column]


def test_images_are_as_sparse_and_as_compressible_as_estimated(images: dict[str, npt.NDArray[np.float32]]) -> None:
    data = images["data"]
    filled = 100 * (data > 0).mean(axis=(0, 2, 3))
    assert filled[0] == pytest.approx(0.9, abs=0.1)  # per cent
    assert filled[1] == pytest.approx(0.9, abs=0.1)
    assert filled[2] == pytest.approx(0.3, abs=0.04)
    some = data[:48].tobytes()
    assert 75 < len(some) / len(zlib.compress(some, 6)) < 110


def test_channels_are_energy_its_electromagnetic_part_and_counts(images: dict[str, npt.NDArray[np.float32]]) -> None:
    data = images["data"]
    assert data.min() == 0
    assert 0.1 < data[:, 0].max() <= 1
    assert (data[:, 1] <= data[:, 0]).all()
    share = data[:, 1].sum() / data[:, 0].sum()
    assert 0.3 < share < 0.7
    counts = data[:, 2] * events.MOST_TRACKS
    np.testing.assert_array_equal(counts, np.rint(counts))
    number = counts.sum(axis=(1, 2))
    assert 60 <= number.min() < 90
    assert 200 < number.max() <= 250
    eta = np.flatnonzero(counts.sum(axis=(0, 1)))
    assert (eta.min(), eta.max()) == (56, 167)  # |eta| < 2.5


def test_scalars_are_those_of_the_two_processes(images: dict[str, npt.NDArray[np.float32]]) -> None:
    signal = images["label"] == 1
    assert abs(signal.mean() - 0.5) < 0.08
    assert 0.1 < np.mean(np.diff(images["label"]) != 0) < 0.9  # shuffled
    assert set(images["jz"][signal]) == {0}
    assert set(images["jz"][~signal]) == set(range(3, 12))
    for name, mass in (("mg", 1400.0), ("mn", 850.0)):
        np.testing.assert_array_equal(images[name], np.where(signal, np.float32(mass), 0))
    assert set(images["psr"]) == {0, 1}
    assert images["eid"].tolist() == list(range(400))
    np.testing.assert_allclose(images["normweight"], images["weight"] / images["weight"].max(), rtol=1e-6)
    of_slice = [images["weight"][images["jz"] == number] for number in range(3, 12)]
    assert all(np.ptp(weights) == 0 for weights in of_slice)  # a slice has one cross-section
    assert (np.diff([weights[0] for weights in of_slice]) < 0).all()


def test_standard_regions_are_cut_on_jets() -> None:
    drawn = events.draw(SEED, np.arange(400))
    hard = np.where(drawn.momentum > 50, drawn.momentum, 0)
    expected = ((hard > 0).sum(axis=1) >= 4) & (hard.sum(axis=1) > 1500)
    np.testing.assert_array_equal(events.scalars(drawn, np.arange(400))["psr"], expected)


def test_background_is_two_jets_back_to_back_and_signal_many() -> None:
    drawn = events.draw(SEED, np.arange(2000))
    background = drawn.label == 0
    jets = (drawn.momentum > 50).sum(axis=1)
    assert (jets[background] <= 4).all()
    assert set(jets[~background]) == set(range(6, 11))
    apart = (drawn.phi[background, 0] - drawn.phi[background, 1]) / events.TURN % 1
    assert np.abs(apart - 0.5).max() < 0.08
    lead = drawn.momentum[background, 0]
    edges = np.array(events.EDGES)[drawn.slice[background] - 3], np.array(events.EDGES)[drawn.slice[background] - 2]
    assert ((edges[0] <= lead) & (lead <= edges[1])).all()
    assert np.median((lead - edges[0]) / (edges[1] - edges[0])) < 0.4  # falls steeply


def test_signal_can_be_learned_from_images(images: dict[str, npt.NDArray[np.float32]]) -> None:
    data, label = images["data"], images["label"]
    energy = data[:, 0].sum(axis=(1, 2))
    features = np.stack(
        [
            *((data > 0).sum(axis=(2, 3)).T / 100.0),
            *np.log(data.sum(axis=(2, 3)).T),
            np.log(data[:, 0].max(axis=(1, 2)) / energy),
            np.log((data[:, 0].sum(axis=2) ** 2).sum(axis=1) / energy**2),  # how much of phi is filled
        ],
        axis=1,
    )
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    features = np.concatenate([features, np.ones((len(label), 1))], axis=1)
    train = np.arange(len(label)) < 280
    weights = np.zeros(features.shape[1])
    for _ in range(300):  # logistic regression by gradient descent
        guess = 1 / (1 + np.exp(-features[train] @ weights))
        weights += 0.5 * features[train].T @ (label[train] - guess) / train.sum()
    score = features[~train] @ weights
    truth = label[~train] == 1
    area = (score[truth][:, None] > score[~truth]).mean()  # under the ROC curve
    assert area > 0.8


@pytest.mark.parametrize("tiny", [False, True])
def test_an_event_is_the_same_alone_and_in_any_slab(tiny: bool, tmp_path: Path) -> None:
    made = layout(tiny, PHYSICAL)
    spec = replace(made.spec_files(1)[0], first=700, samples=40)
    whole = made.write(tmp_path / "a", spec, SEED)
    for row in (0, 17, 39):
        alone = made.write(tmp_path / "b", replace(spec, first=700 + row, samples=1), SEED)
        assert alone.checksums[0].tolist() == whole.checksums[row].tolist()


def test_no_two_events_and_no_two_seeds_are_alike(tmp_path: Path) -> None:
    made = layout(True, PHYSICAL)
    checksums = np.concatenate(
        [
            made.write(tmp_path / "a", replace(made.spec_files(1)[0], first=first, samples=600), seed).checksums[:, 0]
            for seed in (0, 1, 2**32 - 1)
            for first in (0, 2**31 - 600)
        ]
    )
    assert len(set(checksums.tolist())) == checksums.size


def test_events_are_the_same_on_every_machine(tmp_path: Path) -> None:
    made = layout(True, PHYSICAL)
    checksums = made.write(tmp_path / "a", made.spec_files(1)[0], 5).checksums
    assert crc32c(checksums.astype("<u4").tobytes()) == 0xA86C3183
