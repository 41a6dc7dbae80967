"""Published pipelines: what they deliver of every variant, what they read and how often, and that no thread is left.

As readers they have to pass the suite in tests/contract/test_pipelines.py besides.
"""

import io
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from dlio_bench.batches import Batch, Block, Ids, validation_after
from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import example
from dlio_bench.datagen.layout import RANDOM, TRAIN, VALIDATION
from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.commands.run.asked.job import policy, resolved_policy
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.readers.session import SampleView
from tests.datasets import VARIANTS, few, made, stored_fields
from tests.processes import open_files, until

pytestmark = pytest.mark.slow

Plan = Sequence[tuple[int, Ids]]
PIPELINES = [(workload, variant) for workload, variant in VARIANTS if WORKLOADS[workload].upstream is not None]


@pytest.fixture(scope="module", params=PIPELINES, ids="-".join)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    workload, variant = request.param
    return made(tmp_path_factory.mktemp(variant), workload, few(workload, variant), variant)


def deliver(pipeline: Pipeline, dataset: Dataset, plan: Plan) -> tuple[list[list[int]], list[str], dict[int, Cost]]:
    """Ids of every batch, what is wrong with their content, and the cost of every epoch."""
    costs: dict[int, Cost] = {}
    form = SampleView(dataset, (), pipeline.decode(dataset))
    ids, wrong = [], []
    with pipeline.batches(dataset, plan, lambda epoch: costs.setdefault(epoch, Cost())) as batches:
        for batch in batches:
            ids.append(batch.ids.tolist())
            wrong += find_damage(batch, form)
    return ids, wrong, costs


def requested(costs: dict[int, Cost]) -> dict[int, int]:
    return {epoch: cost.bytes_requested for epoch, cost in sorted(costs.items())}


def tail(dataset: Dataset, epochs: int = 2, batch: int = 4) -> Plan:
    """Epochs of the files' last samples, in an order of their own, whole batches only."""
    ids = np.arange(dataset.samples)[-(24 if dataset.manifest.workload == "hepcnnb" else 8) :]
    plan = []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(ids)
        if dataset.manifest.container == "tfrecord":  # as buffers give them: of a file front to back
            order = np.sort(order)
        plan += [(epoch, order[at : at + batch]) for at in range(0, len(ids), batch)]
    return plan


def checked(dataset: Dataset, plan: Plan, pipeline: Pipeline) -> tuple[list[list[int]], dict[int, Cost]]:
    """As `deliver`, after a look at what came: the samples of the plan, and nothing wrong with them."""
    ids, wrong, costs = deliver(pipeline, dataset, plan)
    upstream = WORKLOADS[dataset.manifest.workload].of(dataset.manifest.variant).upstream
    assert upstream is not None
    assert wrong == []
    assert [len(batch) for batch in ids] == [len(batch) for _, batch in plan]
    if upstream.order_known:
        assert ids == [batch.tolist() for _, batch in plan]
    for epoch in {epoch for epoch, _ in plan}:
        found = [i for (other, _), batch in zip(plan, ids, strict=True) if other == epoch for i in batch]
        assert sorted(found) == sorted(i for other, batch in plan if other == epoch for i in batch.tolist())
    return ids, costs


def left_behind(dataset: Dataset) -> tuple[int, list[str]]:
    """Threads of this process of every kind, and open files of the dataset."""
    files = [path for path in open_files().values() if str(dataset.folder) in path]
    return len(list(Path("/proc/self/task").iterdir())), files


def test_it_delivers_its_decoding_of_the_plan_and_leaving_early_ends_threads_and_closes_files(dataset: Dataset) -> None:
    pipeline = started_of(dataset.manifest.workload, dataset.manifest.variant)
    plan = tail(dataset)
    _, costs = checked(dataset, plan, pipeline)
    assert requested(costs) == pipeline.requested_bytes(dataset, plan)

    # whatever the library keeps for good is there now
    threads, files = left_behind(dataset)
    form = SampleView(dataset, (), pipeline.decode(dataset))
    with pipeline.batches(dataset, plan, lambda _: Cost()) as batches:
        batch = next(batches)
        last = batch.blocks[-1].data.copy()
        last[-1] ^= 1
        altered = Batch(batch.ids, (*batch.blocks[:-1], Block(last, batch.blocks[-1].starts)))
        [line] = find_damage(altered, form)
    assert f"sample {batch.ids[-1]}:" in line  # a sample that is not its decoding is named

    def is_left() -> bool:
        now_threads, now_files = left_behind(dataset)
        return now_threads <= threads and now_files == files

    until(is_left)  # the kernel takes a moment to forget a thread


def test_what_is_compared_with_does_not_depend_on_its_neighbours(dataset: Dataset) -> None:
    decode = started_of(dataset.manifest.workload, dataset.manifest.variant).decode(dataset)
    ids = [dataset.samples - 1, 0, 3]
    parts = [stored_fields(dataset, decode.fields, sample) for sample in ids]
    together = [sample.tobytes() for sample in decode.each(ids, parts)]
    for sample, fields, expected in zip(ids, parts, together, strict=True):
        alone = bytearray(decode.sample_bytes)
        decode.apply(sample, fields, memoryview(alone))
        assert bytes(alone) == expected
    assert len(set(together)) == len(ids)


def test_any_plan_at_all_is_delivered_and_a_validation_pass_in_its_order(dataset: Dataset) -> None:
    draw = np.random.default_rng(1)
    first = dataset.manifest.files[0].samples
    held_out = np.arange(min(first, 12) if first > 1 else 8)  # of one file, where a file holds several

    def drawn(epoch: int, *sizes: int) -> Plan:
        return [(epoch, draw.integers(0, dataset.samples, size)) for size in sizes]

    passed = [(validation_after(0), held_out[:5]), (validation_after(0), held_out[5:])]
    plan = [*drawn(0, 3, 1, 4), *passed, *drawn(1, 2, 4)]
    pipeline = started_of(dataset.manifest.workload, dataset.manifest.variant)
    ids, costs = checked(dataset, plan, pipeline)
    assert ids[3] + ids[4] == held_out.tolist()
    assert requested(costs) == dict(sorted(pipeline.requested_bytes(dataset, plan).items()))


class TestHepcnnb:
    def loads(self, tmp_path: Path, plan: Plan, files: int = 4) -> list[int]:
        """Whole files that each epoch reads."""
        dataset = made(tmp_path / "data", "hepcnnb", files)
        pipeline = started_of("hepcnnb")
        fields = ("data", "label", "weight", "normweight", "psr")
        whole = int(dataset.locate(np.arange(64), fields)[2].sum())
        _, costs = checked(dataset, plan, pipeline)
        assert requested(costs) == pipeline.requested_bytes(dataset, plan)
        return [cost.bytes_requested // whole for _, cost in sorted(costs.items())]

    def test_batches_may_cross_files_and_leave_out_parts_of_them(self, tmp_path: Path) -> None:
        stream = np.concatenate([np.arange(128, 192), np.arange(0, 64), np.arange(64, 128)])
        assert self.loads(tmp_path / "crossing", [(0, stream[at : at + 48]) for at in range(0, 192, 48)]) == [3]
        assert self.loads(tmp_path, [(0, np.arange(60, 70)), (0, np.arange(70, 80))]) == [2]


class TestOrders:
    def test_shares_of_cosmoflow_overlap_and_leave_files_out(self) -> None:
        order, shape = find_order("overlapping-shuffle"), Shape(64, 4, 2)
        parts = [[set(order(shape, rank, epoch, 7).ravel().tolist()) for rank in range(4)] for epoch in range(3)]
        assert all(len(part) == 16 for epoch in parts for part in epoch)
        for epoch in parts:
            assert any(one & other for one, other in combinations(epoch, 2))
            # of 64 files, each is in a share of a quarter with chance 1 - (3/4)^4 = 0.68
            assert 0.5 < len(set.union(*epoch)) / 64 < 0.85
        assert parts[0] != parts[1]

    def test_every_rank_of_sc18_goes_through_all_files_by_itself(self) -> None:
        order, shape = find_order("unsharded-shuffle"), Shape(3 * 64, 8, 1, bounds=np.arange(4) * 64)
        passes = [[order(shape, rank, epoch, 7).ravel().tolist() for epoch in range(16)] for rank in range(8)]
        assert all(len(ids) == 24 for epochs in passes for ids in epochs)  # less than a file, and no file is dealt
        every = list(range(192))
        for epochs in passes:
            first, second = np.concatenate(epochs[:8]), np.concatenate(epochs[8:])
            assert sorted(first) == sorted(second) == every
            assert (first % 64 == np.tile(np.arange(64), 3)).all()  # front to back
        assert len({tuple(np.concatenate(epochs)) for epochs in passes}) > 2  # of the six orders of three files
        assert find_order("unsharded-shuffle").fit(replace(shape, last="pad")).steps == 24

    def test_sc18_reads_whole_files_front_to_back(self) -> None:
        shape = Shape(8 * 64, 2, 4, bounds=np.arange(9) * 64)
        ids = find_order("overlapping-shuffle")(shape, 1, 0, 3).reshape(-1, 64)
        assert len(ids) == 4
        assert (ids % 64 == np.arange(64)).all()

    @pytest.mark.parametrize(("files", "loaded"), [(2, [1, 0, 0]), (4, [2, 2, 2])])
    def test_hepcnnb_with_a_file_a_rank_reads_it_once(self, tmp_path: Path, files: int, loaded: list[int]) -> None:
        shape = Shape(64 * files, 2, 16, bounds=np.arange(files + 1) * 64)
        order = find_order(resolved_policy(policy("upstream", WORKLOADS["hepcnnb"]), WORKLOADS["hepcnnb"], shape).order)
        plan = [(epoch, ids) for epoch in range(3) for ids in order(shape, 1, epoch, 6)]
        assert TestHepcnnb().loads(tmp_path, plan, files) == loaded
        if files == 4:  # which files these are changes
            drawn = {frozenset((order(shape, 1, epoch, 5) // 64).ravel().tolist()) for epoch in range(8)}
            assert len(drawn) > 1

    @pytest.mark.parametrize(("workload", "variant"), PIPELINES)
    def test_every_order_that_a_workload_names_is_there(self, workload: str, variant: str) -> None:
        upstream = WORKLOADS[workload].of(variant).upstream
        assert upstream is not None
        assert upstream.order in upstream.orders
        for name in upstream.orders:
            assert find_order(name)
        assert find_order(upstream.order).exactly_once == upstream.exactly_once

    @pytest.mark.parametrize(
        ("variant", "order", "known"),
        [(None, "buffered-shuffle(10000)", False), ("raw", "buffered-shuffle(10)", True)],
    )
    def test_imagenet_has_the_buffer_that_was_published_for_its_variant(
        self, variant: str | None, order: str, known: bool
    ) -> None:
        row = policy("upstream", look_up(Options("imagenet", variant=variant, readers=("upstream",))).workload)
        assert (row.name, row.order, row.order_known) == ("upstream", order, known)


class TestCdb:
    def test_it_asks_for_three_and_a_half_times_what_it_uses(self, tmp_path: Path) -> None:
        dataset = made(tmp_path / "data", "cdb", 2)
        view = WORKLOADS["cdb"].view
        plan = [(0, np.array([1])), (0, np.array([0]))]
        used = dataset.locate(np.arange(2), view)[3].sum()
        assert 3.4 < started_of("cdb").requested_bytes(dataset, plan)[0] / used < 3.6  # 3.40 at full size
        # published: 60.17 MB a file for 17 694 752 bytes of logical data
        layout = WORKLOADS["cdb"].variants["cori"](False, RANDOM)
        assert layout.file_bytes / 17_694_752 == pytest.approx(3.4, abs=0.01)

    @pytest.mark.parametrize(("second", "ahead"), [(np.arange(4), False), (np.arange(4, 8), True)])
    def test_the_next_pass_over_its_files_is_not_read_while_it_validates(
        self, tmp_path: Path, second: Ids, ahead: bool
    ) -> None:
        """`repeat` is the last stage of tiramisu_helpers.py; parts of one pass are read ahead."""
        dataset, costs = made(tmp_path / "data", "cdb", 8), dict[int, Cost]()
        plan = [(0, np.array([n])) for n in range(4)] + [(validation_after(0), np.array([n])) for n in range(4)]
        plan += [(1, second[n : n + 1]) for n in range(4)]
        with started_of("cdb").batches(dataset, plan, lambda epoch: costs.setdefault(epoch, Cost())) as batches:
            for _ in range(8):
                next(batches)
            if ahead:
                until(lambda: 1 in costs)
            else:
                time.sleep(0.2)  # nothing can be waited for: that nobody reads is the right end
                assert 1 not in costs
            assert next(batches).ids.tolist() == second[:1].tolist()

    def test_its_processes_all_start_and_are_gone_when_it_is_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = made(tmp_path / "data", "cdb", 8)
        upstream = WORKLOADS["cdb"].upstream
        assert upstream is not None
        submit = ProcessPoolExecutor.submit

        def slowly(pool: ProcessPoolExecutor, *call: Any) -> "Future[Any]":
            future = submit(pool, *call)
            wait([future], 0.2)  # so that a process that is through with a call is idle at the next one
            return future

        with monkeypatch.context() as patch:
            patch.setattr(ProcessPoolExecutor, "submit", slowly)
            pipeline = upstream.start()
        pids = pipeline.processes
        assert len(set(pids)) == 4
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        with pipeline.batches(dataset, [(0, np.arange(4)), (0, np.arange(4, 8))], lambda _: Cost()) as batches:
            next(batches)
        pipeline.close()
        pipeline.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    def test_a_killed_process_is_told_and_not_waited_for(self, tmp_path: Path) -> None:
        dataset = made(tmp_path / "data", "cdb", 8)
        upstream = WORKLOADS["cdb"].upstream
        assert upstream is not None
        pipeline = upstream.start()
        try:
            for pid in pipeline.processes:
                os.kill(pid, signal.SIGSTOP)
            kill = threading.Timer(0.2, lambda: [os.kill(pid, signal.SIGKILL) for pid in pipeline.processes])
            kill.start()
            with (
                pytest.raises(EnvironmentFailure, match="process of the pipeline is gone"),
                pipeline.batches(dataset, [(0, np.arange(4))], lambda _: Cost()) as batches,
            ):
                next(batches)
            kill.join()
        finally:
            pipeline.close()


class TestQueues:
    def test_a_pool_of_201_samples_is_read_before_each_draw(self, tmp_path: Path) -> None:
        """Of 256 samples that can be read, 56 come: before each draw the pool holds 201."""
        dataset = made(tmp_path / "data", "cosmoflow", 6, "sc18")
        for number in (4, 5):
            dataset.path(number).unlink()
        plan = [(epoch, np.arange(32 * epoch, 32 * epoch + 32)[at : at + 1]) for epoch in range(12) for at in range(32)]
        ids = list[int]()
        with (
            pytest.raises(DataError, match="is missing from its dataset"),
            started_of("cosmoflow", "sc18").batches(dataset, plan, lambda _: Cost()) as batches,
        ):
            ids.extend(sample for batch in batches for sample in batch.ids.tolist())
        assert len(ids) == 256 - 200
        assert ids[:32] != sorted(ids[:32]) == list(range(32))  # drawn, and from the first epoch


class TestImageNet:
    def decoded(self, dataset: Dataset, records: Iterable[tuple[int, bytes]]) -> list[np.ndarray]:
        """The images that the pipeline makes of records with these ids, float32 [224, 224, 3]."""
        ids, contents = zip(*records, strict=True)
        parts = [[memoryview(content)] for content in contents]
        samples = started_of("imagenet").decode(dataset).each(ids, parts)
        return [np.frombuffer(sample, np.float32)[:-1].reshape(224, 224, 3) for sample in samples]

    def test_validation_images_are_resized_to_256_and_cropped_in_the_middle(self, tmp_path: Path) -> None:
        import tensorflow as tf  # late, as everywhere

        dataset = made(tmp_path / "data", "imagenet", {TRAIN: 1, VALIDATION: 1})
        first = dataset.training_samples
        records = [bytes(stored_fields(dataset, ["record"], sample)[0]) for sample in (first, first + 1)]
        validated = self.decoded(dataset, zip((first, first + 1), records, strict=True))
        trained = self.decoded(dataset, [(0, record) for record in records])
        for record, found, distorted in zip(records, validated, trained, strict=True):
            image = tf.io.decode_jpeg(example.decode(record)["image/encoded"][0].tobytes(), channels=3)
            height, width, _ = image.shape
            scale = np.float32(256) / np.float32(min(height, width))
            size = (int(np.float32(height) * scale), int(np.float32(width) * scale))
            whole = tf.compat.v1.image.resize(image, size, method="bilinear", align_corners=False).numpy()
            top, left = ((side - 224) // 2 for side in size)
            expected = whole[top : top + 224, left : left + 224] - np.float32([123.68, 116.78, 103.94])
            np.testing.assert_array_equal(found, expected)
            # the same record as a training image is distorted
            assert not np.array_equal(distorted, expected)

    def test_crops_of_training_images_go_by_the_boxes_in_the_record(self, tmp_path: Path) -> None:
        dataset = made(tmp_path / "data", "imagenet", 1)
        picture = stored(np.random.default_rng(1).integers(0, 256, (100, 100, 3), dtype=np.uint8), "JPEG")

        def with_box(ymin: float) -> list[np.ndarray]:
            corners = {"ymin": ymin, "xmin": 0.0, "ymax": ymin + 0.1, "xmax": 0.1}
            boxes = {f"image/object/bbox/{name}": np.float32([value]) for name, value in corners.items()}
            record = example.encode({"image/encoded": picture, "image/class/label": np.array([1]), **boxes})
            return self.decoded(dataset, [(sample, b"".join(record)) for sample in range(4)])

        # a tenth of a small box must be in the crop: at the top of the image, or at its foot; large crops have both
        assert not np.array_equal(with_box(0.0), with_box(0.9))

    def test_an_image_of_another_kind_is_cropped_as_a_jpeg_of_its_pixels(self, tmp_path: Path) -> None:
        dataset = made(tmp_path / "data", "imagenet", {TRAIN: 1, VALIDATION: 1})
        pixels = np.full((100, 120, 3), (10, 120, 200), dtype=np.uint8)  # which JPEG keeps to within 2

        def with_image(kind: str) -> list[np.ndarray]:
            """As a sample of training, and of validation."""
            content = {"image/encoded": stored(pixels, kind), "image/class/label": np.array([1])}
            record = b"".join(example.encode(content))
            return self.decoded(dataset, [(0, record), (dataset.training_samples, record)])

        expected = with_image("JPEG")
        for kind in ("PNG", "GIF", "BMP"):
            np.testing.assert_allclose(with_image(kind), expected, atol=2)


def stored(pixels: np.ndarray, kind: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


_STARTED: dict[tuple[str, str | None], Pipeline] = {}


def started_of(workload: str, variant: str | None = None) -> Pipeline:
    """A pipeline that needs no end, or whose end is its parent's."""
    if (workload, variant) not in _STARTED:
        upstream = WORKLOADS[workload].of(variant).upstream
        assert upstream is not None
        _STARTED[workload, variant] = upstream.start()
    return _STARTED[workload, variant]


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    for pipeline in _STARTED.values():
        pipeline.close()
    _STARTED.clear()
