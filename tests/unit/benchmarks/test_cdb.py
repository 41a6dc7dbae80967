"""Physical CDB samples: values, masks that follow the fields, statistics, and the published split."""

import zlib
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c

from dlio_bench.benchmarks.cdb import fields, physical
from dlio_bench.benchmarks.cdb.fields import CHANNELS, NUMBERS
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen import random_bytes
from dlio_bench.datagen.layout import PHYSICAL, TEST, TRAIN, VALIDATION

pytestmark = pytest.mark.slow

SEED, SHAPE = 5, (16, 768, 1152)
FULL, TINY = (WORKLOADS["cdb"].variants["cori"](tiny, PHYSICAL) for tiny in (False, True))
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def samples() -> list[tuple[Floats, Floats, Floats]]:
    """Six samples: every third row of the fields, as much of the labels, and stats."""
    data, found = np.empty(SHAPE, dtype="<f4"), []
    for number in range(6):
        labels, stats, checksums = physical.make(SEED, number, data)
        assert checksums[3] == crc32c(data[3].tobytes())
        found.append((data[:, ::3].copy(), labels[::3], stats))
    return found


def test_a_file_holds_what_was_made(tmp_path: Path) -> None:
    (spec,) = FULL.files({TRAIN: 0, TEST: 1})
    written = FULL.write(tmp_path / "a", spec, SEED)
    assert (tmp_path / "a").stat().st_size == 60_171_786
    data = np.empty(SHAPE, dtype="<f4")
    labels, stats, _ = physical.make(SEED, spec.first, data)
    with h5py.File(tmp_path / "a") as file:
        group = file["climate"]
        np.testing.assert_array_equal(group["data"][()], data)
        np.testing.assert_array_equal(group["labels"][()], labels)
        np.testing.assert_array_equal(group["stats"][()], stats)
    content = (tmp_path / "a").read_bytes()
    for (offset, length, _), crc in zip(written.extents[0].tolist(), written.checksums[0].tolist(), strict=True):
        assert crc32c(content[offset : offset + length]) == crc
    exact = data.astype(np.float64).reshape(16, -1)
    expected = np.stack([exact.mean(1), exact.max(1), exact.min(1), exact.std(1)], axis=1)
    np.testing.assert_allclose(stats[:, 1:3], expected[:, 1:3], rtol=1e-7)
    np.testing.assert_allclose(stats[:, 3], expected[:, 3], rtol=1e-5)
    assert (np.abs(stats[:, 0] - expected[:, 0]) < 1e-5 * expected[:, 3] + 1e-7 * np.abs(expected[:, 0])).all()


def test_values_are_of_the_climate(samples: list) -> None:
    values = np.stack([data for data, _, _ in samples], axis=1).astype(np.float64).reshape(16, -1)
    for channel, found in zip(CHANNELS, values, strict=True):
        assert channel.low <= found.min(), channel.name
        assert found.max() <= channel.high, channel.name
        if channel.name not in ("PRECT", "PS"):
            assert abs(found.mean() - channel.mean) < 0.1 * channel.sd, channel.name
            assert found.std() == pytest.approx(channel.sd, rel=0.1), channel.name
    assert values[NUMBERS["PRECT"]].mean() == pytest.approx(2.9e-8, rel=0.25)
    assert values[NUMBERS["PS"]].mean() == pytest.approx(9.66e4, rel=0.005)
    assert values[NUMBERS["PS"]].std() == pytest.approx(9.4e3, rel=0.1)
    assert len(np.unique(values[0])) > 0.5 * values[0].size  # not bounded into constants


def test_fields_are_smooth_and_compress_like_stored_floats(samples: list) -> None:
    data = samples[0][0]
    assert 1.05 < data.nbytes / len(zlib.compress(data, 6)) < 1.3
    steps = np.abs(np.diff(data, axis=2)).mean(axis=(1, 2)) / data.std(axis=(1, 2))
    assert steps.max() < 0.1


def test_the_tropics_are_warm_and_moist(samples: list) -> None:
    for data, _, _ in samples:
        for name in ("TMQ", "QREFHT", "T500", "TS", "TREFHT"):
            rows = data[NUMBERS[name]].mean(axis=1)
            assert rows[118:138].mean() > rows[:40].mean() + CHANNELS[NUMBERS[name]].sd, name


def test_labels_have_the_published_frequencies() -> None:
    """Over 150 samples, of which only the two fields are made that masks are found in."""
    pool, found = fields.pool(SEED, *SHAPE[1:]), []
    two = np.empty((2, *SHAPE[1:]), np.float32)
    for number in range(150):
        draw = np.random.Generator(random_bytes.source(SEED, number, 0))
        weather, drawn = fields.weather(draw, SHAPE[2]), physical.draw_storms(draw, *SHAPE[1:])
        for field, channel in zip(two, (NUMBERS["TMQ"], NUMBERS["PSL"]), strict=True):
            fields.fill(pool, weather, channel, field)
            physical.add_storms(drawn, channel, field)
        labels = physical.label_storms(drawn, pool, *two)
        found.append([np.count_nonzero(labels == kind) / labels.size for kind in (0, 1, 2)])
    frequencies = np.mean(found, axis=0)
    np.testing.assert_allclose(frequencies, [0.982, 0.00071, 0.017], rtol=0.1)
    assert sum(frequencies) == pytest.approx(1)


@pytest.mark.parametrize(("kind", "least"), [(physical.CYCLONE, 0.3), (physical.RIVER, 0.3)])
def test_masks_can_be_learned_pixel_by_pixel(samples: list, kind: int, least: float) -> None:
    means, deviations = (np.mean([stats[:, n] for _, _, stats in samples], axis=0)[:, None] for n in (0, 3))
    pixels = [((data.reshape(16, -1) - means) / deviations, labels.reshape(-1) == kind) for data, labels, _ in samples]
    known = np.concatenate([values for values, _ in pixels[:4]], axis=1)
    marked = np.concatenate([marks for _, marks in pixels[:4]])
    draw = np.random.default_rng(0)
    rest = draw.choice(np.flatnonzero(~marked), 20_000, replace=False)
    chosen = np.concatenate([draw.choice(np.flatnonzero(marked), 5_000), rest])
    weights = _logistic(known[:, chosen], marked[chosen])
    scores = _scores(weights, known)
    thresholds = np.quantile(scores, 1 - marked.mean() * np.array([0.5, 0.75, 1, 1.5, 2, 3]))
    best = max(thresholds, key=lambda threshold: _iou(scores >= threshold, marked))
    values, truth = (np.concatenate([pixel[n] for pixel in pixels[4:]], axis=-1) for n in (0, 1))
    assert _iou(_scores(weights, values) >= best, truth) > least > 10 * truth.mean()  # all marked: IoU is the mean


def _logistic(values: npt.NDArray[np.float64], marks: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Weights and bias by Newton's method."""
    design = np.vstack([values, np.ones(values.shape[1])])
    weights = np.zeros(len(design))
    for _ in range(12):
        share = 1 / (1 + np.exp(-np.clip(weights @ design, -30, 30)))
        curvature = (design * (share * (1 - share))) @ design.T + 1e-2 * np.eye(len(design))
        weights += np.linalg.solve(curvature, design @ (marks - share) - 1e-2 * weights)
    return weights


def _scores(weights: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(weights[:-1] @ values + weights[-1])


def _iou(found: npt.NDArray[np.bool_], truth: npt.NDArray[np.bool_]) -> float:
    return float(np.count_nonzero(found & truth) / np.count_nonzero(found | truth))


def test_samples_differ_everywhere(samples: list) -> None:
    rows = [row.tobytes() for data, _, _ in samples for row in data.reshape(-1, 1152)]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sample_does_not_depend_on_what_was_made_before(seed: int) -> None:
    shape = (16, 48, 72)
    data, again = np.empty(shape, dtype="<f4"), np.empty(shape, dtype="<f4")
    first = physical.make(seed, 7, data)
    for other in range(3):
        physical.make(seed + other, other, again)
    fields.pool.cache_clear()
    second = physical.make(seed, 7, again)
    np.testing.assert_array_equal(data, again)
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_stats_file_bounds_all_samples_and_has_moments_of_the_first(tmp_path: Path) -> None:
    TINY.auxiliary["stats.h5"](tmp_path / "stats.h5", SEED)
    with h5py.File(tmp_path / "stats.h5") as file:
        stats = file["climate/stats"][()]
    data, made = np.empty((16, 48, 72), dtype="<f4"), []
    for number in range(60):
        physical.make(SEED, number, data)
        assert (data.max(axis=(1, 2)) <= stats[:, 1]).all()
        assert (data.min(axis=(1, 2)) >= stats[:, 2]).all()
        if number < 8:
            made.append(data.astype(np.float64).reshape(16, -1))
    whole = np.concatenate(made, axis=1)
    np.testing.assert_allclose(stats[:, 0], whole.mean(1), rtol=1e-5, atol=1e-5 * whole.std(1).max())
    np.testing.assert_allclose(stats[:, 3], whole.std(1), rtol=1e-4)


def test_the_split_is_the_published_permutation_of_the_sorted_names() -> None:
    counts = {TRAIN: 50_190, VALIDATION: 6_274, TEST: 6_274}
    assert {split.name: split.full_files for split in FULL.splits} == counts
    files = FULL.files(counts)
    assert [file.first for file in files] == list(range(62_738))
    names = np.array(sorted(file.name for file in files))
    assert len(set(names)) == 62_738
    np.random.seed(12345)
    names = names[np.random.permutation(len(names))]  # as tiramisu_helpers.py does
    published = {TRAIN: names[:50_190], TEST: names[50_190:56_464], VALIDATION: names[56_464:]}
    for name, expected in published.items():
        assert [file.name for file in files if file.split == name] == sorted(expected)
    small = FULL.files({TRAIN: 8, VALIDATION: 1, TEST: 1})
    assert [file.split for file in small] == [TRAIN] * 8 + [VALIDATION, TEST]
    assert sorted(file.name for file in small) == sorted(file.name for file in FULL.spec_files(10))
