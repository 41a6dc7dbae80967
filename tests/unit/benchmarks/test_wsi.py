"""Whole-slide inference: slides and tiles, patches that are kept, batches that close at tile ends, what is written.

That all ways to read give the same patches is in tests/streams/test_wsi.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks.model import Cutting
from dlio_bench.benchmarks.wsi import model, slides
from dlio_bench.benchmarks.wsi.decode import LEAST_DEVIATION, patches_of, shows_tissue
from dlio_bench.benchmarks.wsi.layout import layout
from dlio_bench.benchmarks.wsi.model import VGG16
from dlio_bench.benchmarks.wsi.slides import TilePlace
from dlio_bench.benchmarks.wsi.workload import WSI
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.calibration.compute.command import make_job
from dlio_bench.harness.commands.calibration.options import Options as CalibrateOptions
from dlio_bench.harness.commands.run.asked import training
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.training.inference import PieceInference, _merge_predictions
from tests.datasets import made, stored_fields

PATCHES = 4  # of a tiny tile


# slides


def test_the_first_slides_are_the_published_ones_and_the_others_are_like_them() -> None:
    specs = layout(False, PHYSICAL).spec_files(400)
    sizes = [spec.samples for spec in specs]
    assert tuple(sizes[:12]) == slides.PUBLISHED_TILES
    assert set(sizes) == set(slides.PUBLISHED_TILES)
    assert np.mean(sizes) == pytest.approx(np.mean(slides.PUBLISHED_TILES), rel=0.15)
    assert [spec.first for spec in specs] == np.cumsum([0, *sizes[:-1]]).tolist()
    assert specs[0].name == "slide-0000.h5"
    beyond = layout(False, PHYSICAL).spec_files(7984)
    assert beyond[:400] == specs
    place = slides.tile_place(beyond[-1].first, tiny=False, size=1000)
    assert (place.x, place.y) == (1, 1)


def test_no_two_tiles_of_a_slide_lie_in_one_place() -> None:
    first = sum(slides.PUBLISHED_TILES[:1])
    places = [slides.tile_place(first + tile, tiny=False, size=1000) for tile in range(100)]
    assert len(set(places)) == 100
    assert places[0].name == "1_1_2000_1000.png"  # as a published tile of a slide at 40x
    assert {(place.x - 1) % place.width + (place.y - 1) % place.width for place in places} == {0}
    assert (places[1].x, places[1].y) == (1, 2001)  # y is the inner one


# patches


def test_a_tile_is_cut_x_by_x_and_in_each_y_by_y() -> None:
    tile = np.zeros((4, 6, 3), np.uint8)
    tile[...] = (np.arange(4)[:, None] // 2 + 10 * (np.arange(6) // 2))[..., None]  # y + 10 x of the patch
    patches = np.empty((6, 2, 2, 3), np.uint8)
    patches_of(tile, 2, patches)
    assert patches[:, 0, 0, 0].tolist() == [0, 1, 10, 11, 20, 21]
    assert all((patch == patch[0, 0, 0]).all() for patch in patches)


def test_a_patch_is_kept_from_a_mean_deviation_of_12_on() -> None:
    def halves(*distances: int) -> npt.NDArray[np.uint8]:
        """Half of the pixels are so much brighter than the others, in each channel: the deviation is half of that."""
        patch = np.full((10, 10, 3), 100, np.uint8)
        patch[:5] += np.array(distances, np.uint8)
        return patch

    patches = np.stack([halves(24, 24, 24), halves(24, 24, 22), halves(72, 0, 0), halves(0, 0, 0), halves(70, 0, 0)])
    assert LEAST_DEVIATION == 12
    assert shows_tissue(patches).tolist() == [True, False, True, False, False]


def test_synthetic_slides_are_part_glass_and_part_tissue(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "wsi", 40, fill=PHYSICAL)
    assert WSI.decode is not None
    decode = WSI.decode(dataset)
    shares = []
    for sample in range(dataset.samples):
        out = memoryview(bytearray(decode.sample_bytes))
        decode.apply(sample, stored_fields(dataset, decode.fields, sample), out)
        flags = np.frombuffer(out[: 4 * PATCHES], np.int32)
        patches = np.frombuffer(out[4 * PATCHES :], np.uint8).reshape(PATCHES, 50, 50, 3)
        assert flags.tolist() == shows_tissue(patches).tolist()
        shares.append(flags.mean())
    assert 0.6 < np.mean(shares) < 0.9
    with h5py.File(dataset.path(3)) as file:
        assert file["places"][()].tolist() == [[1, 1, 2000, 100]]


# batches


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("slides") / "data", "wsi", 6, fill=PHYSICAL)


class Recorded(PieceInference):
    """Writes down how many pieces go through the network together. It has none: an output is the piece's first word."""

    def __init__(self, dataset: Dataset, folder: Path, *, least: int, firsts: Sequence[int]) -> None:
        self._comm, self._model, self._training = Solo(), VGG16, dataset.samples
        assert VGG16.cutting is not None
        self._cutting: Cutting = replace(VGG16.cutting, least=least)
        self._dataset, self._folder, self._scale = dataset, folder, "1x1"
        self._piece = self._cutting.of(dataset)
        self._firsts = np.array(firsts)
        self._trial = -1
        self.sizes: list[int] = []

    def _predict_pieces(self, pieces: npt.NDArray[np.float32]) -> Any:
        self.sizes.append(len(pieces))
        return np.stack([pieces[:, 0], pieces[:, 0]], axis=1), np.zeros(len(pieces), np.int32)


def tile(recorded: Recorded, sample: int, flags: Sequence[int], logit: float = 1.0) -> Batch:
    pieces = np.full((len(flags), recorded._piece.words), logit, np.float32)
    content = np.concatenate([np.array(flags, np.int32).view(np.float32), pieces.ravel()])
    return Batch(np.array([sample]), (Block.even(content[None]),))


@pytest.mark.parametrize("least", [5, 7])  # 3 + 4 patches are more, or as many
def test_a_batch_closes_at_the_end_of_the_tile_that_fills_it_and_of_the_slide(
    least: int, dataset: Dataset, tmp_path: Path
) -> None:
    recorded = Recorded(
        dataset, tmp_path, least=least, firsts=[0, 4]
    )  # tiles 0..3 are of one slide, 4 and 5 of the next
    recorded.begin("naive", 0, 0)
    after = []
    for sample, flags in enumerate(["1011", "1111", "0000", "1101", "1000", "0110"]):
        recorded.step(tile(recorded, sample, [int(flag) for flag in flags], logit=float(sample)))
        after.append(list(recorded.sizes))
    assert after == [[], [7], [7], [7], [7, 3], [7, 3]]  # the slide's rest goes before the next slide
    assert recorded.finish() > 0
    assert recorded.sizes == [7, 3, 3]
    assert recorded.finish() == 0.0
    values = {sample: np.round(value, 3).tolist() for sample, value in recorded._values.items()}
    assert values[0] == [0.5, 0, 0.5, 0.5]
    assert values[2] == [0, 0, 0, 0]
    assert values[3] == pytest.approx([0.953, 0.953, 0, 0.953])
    summary = recorded.end().summary
    assert summary.samples == 6
    assert summary.scores == {"positive_share": 1.0, "classified_patches": 13.0}


def test_readers_of_one_trial_are_compared_patch_by_patch(dataset: Dataset, tmp_path: Path) -> None:
    recorded = Recorded(dataset, tmp_path, least=96, firsts=[entry.first for entry in dataset.manifest.files])
    for trial, reader, logit in ((0, "naive", 1.0), (0, "stream", -1.0), (1, "stream", 1.0), (1, "naive", 1.0)):
        recorded.begin(reader, trial, 0)
        for sample in (0, 1):
            recorded.step(tile(recorded, sample, [1, 1, 0, 1], logit if sample else 1.0))
        recorded.finish()
        scores = recorded.end().summary.scores
        if (trial, reader) in ((0, "naive"), (1, "stream")):
            assert "dice" not in scores
        elif trial == 0:
            assert scores["dice"] == pytest.approx(2 * 3 / (6 + 3))
            assert scores["difference"] == pytest.approx(0.4621, abs=1e-4)
        else:
            assert (scores["dice"], scores["difference"]) == (1.0, 0.0)
    lines = (tmp_path / "stream-1x1" / "pieces" / "slide-0001" / model.PREDICTIONS_FILE).read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["501", "501"], ["501", "1501"], ["1501", "501"], ["1501", "1501"]]
    assert [float(line.split()[2]) > 0 for line in lines] == [True, True, False, True]


def test_a_tile_that_two_ranks_predicted_is_told() -> None:
    values = np.zeros(4, np.float32)
    assert set(_merge_predictions([{1: values}, {2: values}])) == {1, 2}
    with pytest.raises(DataError, match=r"\[2\] were predicted by several"):
        _merge_predictions([{1: values, 2: values}, {2: values}])


def test_patches_are_written_by_their_middles_in_pixels_of_the_slide() -> None:
    values = np.arange(100, dtype=np.float32) / 100
    lines = list(model.lines(TilePlace(2001, 4001, 2000, 1000), values))
    assert lines[0] == "2101 4101 0\n"
    assert lines[1] == f"2101 4301 {values[1]:.9g}\n"
    assert lines[10].split()[:2] == ["2301", "4101"]
    assert float(lines[37].split()[2]) == values[37]  # all digits of a float32


# the network


def test_it_is_not_trained() -> None:
    with pytest.raises(UsageError, match=r"no labels.*--compute infer"):
        training.resolve(Options("wsi", compute="train"), WSI, layout(True, PHYSICAL), [])
    with pytest.raises(UsageError, match="no labels"):
        make_job(CalibrateOptions(compute="wsi", threads=()))


def test_patches_are_scaled_to_one_and_resized_without_averaging(dataset: Dataset) -> None:
    sample = VGG16.sample(dataset)
    patch = np.zeros((1, 50, 50, 3), np.uint8)
    patch[:, :, 25:] = 255
    inputs = sample.fields([patch.reshape(1, -1).view(np.int32)]).inputs.numpy()
    assert inputs.shape == (1, 32, 32, 3)
    assert (inputs[0, :, 0], inputs[0, :, -1]) == (pytest.approx(-1), pytest.approx(1))
