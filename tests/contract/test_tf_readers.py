"""What tf.data delivers of every variant, stored and decoded; the suite of readers on it is in test_pipelines.py.

Where TensorFlow shuffles, an epoch is its plan's as a multiset: what the suite says of the sequence is said of that.
"""

from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import tfrecord
from dlio_bench.errors import DataError
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.options import ReaderOptions
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Planned, Reader, SampleView, Tally, largest, plan_batches
from tests.datasets import VARIANTS, few, made, view_of
from tests.mounts import FREE, running
from tests.needs import needs

pytestmark = pytest.mark.slow


# original-64 differs from sc18 in what a record holds alone
@pytest.fixture(scope="module", params=[one for one in VARIANTS if one[1] != "original-64"], ids="-".join)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    workload, variant = request.param
    return made(tmp_path_factory.mktemp(variant), workload, few(workload, variant), variant)


@pytest.fixture(params=[False, True], ids=["stored", "decoded"])
def form(request: pytest.FixtureRequest, dataset: Dataset) -> SampleView:
    workload = find_workload(dataset.manifest.workload).of(dataset.manifest.variant)
    assert workload.decode is not None
    return SampleView(dataset, workload.view, workload.decode(dataset) if request.param else None)


def make(form: SampleView, policy: str = "tfdata", *, check: bool = False) -> Reader:
    resources = Resources(
        threads=2, staging_bytes=64_000_000, batch_bytes=1 << 20, options=ReaderOptions(check_crc=check)
    )
    return open_reader(find(policy), form, resources)


def epochs(form: SampleView, ranks: int, rank: int, epochs: int = 2) -> list[Planned]:
    dataset = form.dataset
    bounds = np.append([entry.first for entry in dataset.manifest.files], dataset.samples)
    shape = Shape(dataset.samples, ranks, 3, bounds=bounds)
    order = find_order("buffered-shuffle(16)")
    return plan_batches(form, [(e, list(order(shape, rank, e, 5))[:8]) for e in range(epochs)])


def check_epochs(plan: list[Planned], delivered: list[list[int]]) -> None:
    assert [len(ids) for ids in delivered] == [len(batch.ids) for batch in plan]
    for epoch in {batch.epoch for batch in plan}:
        wanted = [i for batch in plan if batch.epoch == epoch for i in batch.ids.tolist()]
        found = [i for batch, ids in zip(plan, delivered, strict=True) if batch.epoch == epoch for i in ids]
        assert sorted(found) == sorted(wanted)


def deliver(reader: Reader, plan: list[Planned], tally: Tally | None = None) -> list[list[int]]:
    ids = []
    with reader.session(plan, tally or Tally()) as batches:
        for batch in batches:
            assert find_damage(batch, reader.sample_view) == []
            ids.append(batch.ids.tolist())
    return ids


def test_an_epoch_is_its_plan_with_the_generated_bytes(form: SampleView) -> None:
    plan = epochs(form, 2, 1)
    reader, tally = make(form), Tally()
    check_epochs(plan, deliver(reader, plan, tally))
    assert {epoch: cost.bytes_requested for epoch, cost in sorted(tally.epochs.items())} == reader.requested_bytes(plan)


def test_any_plan_at_all(dataset: Dataset) -> None:
    form, draw = view_of(dataset), np.random.default_rng(2)
    plan = plan_batches(form, [(0, [draw.integers(0, dataset.samples, n) for n in (4, 2, 0, 4, 0)])])
    check_epochs(plan, deliver(make(form), plan))


def test_a_flipped_byte_is_named(dataset: Dataset) -> None:
    form = view_of(dataset)
    plan = epochs(form, 1, 0, epochs=1)
    files, offsets, stored, _ = dataset.locate(plan[1].ids[:1], form.fields)
    victim = dataset.path(int(files[0]))
    whole = victim.read_bytes()
    content = bytearray(whole)
    content[int(offsets[0, 0] + stored[0, 0] // 2)] ^= 255
    victim.write_bytes(content)
    try:
        with pytest.raises(DataError, match=victim.name):
            deliver_unchecked(make(form, check=True), plan)
    finally:
        victim.write_bytes(whole)


def test_what_cannot_be_decoded_is_named_without_checking_too(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "imagenet", 4, "raw")
    decode = find_workload("imagenet").decode
    assert decode is not None
    form = SampleView(dataset, ("record",), decode(dataset))
    dataset.path(2).write_bytes(bytes(dataset.manifest.files[2].bytes))
    with pytest.raises(DataError, match=f"{dataset.path(2).name}: The image is no JPEG"):
        deliver_unchecked(make(form), plan_batches(form, [(0, [np.arange(4)])]))


def deliver_unchecked(reader: Reader, plan: list[Planned]) -> None:
    with reader.session(plan, Tally()) as batches:
        for _ in batches:
            pass


def test_the_buffer_of_the_order_is_what_tensorflow_shuffles(dataset: Dataset) -> None:
    form = view_of(dataset)
    reader = make(form, "tfdata+order=buffered-shuffle(100)")
    several = dataset.samples > len(dataset.manifest.files) and dataset.manifest.container == "tfrecord"
    assert reader.options["shuffle_buffer"] == (100 if several else 0)


def test_the_published_pipeline_of_another_variant_delivers_in_its_own_form(tmp_path: Path) -> None:
    """Those of every variant by themselves are in tests/unit/readers/test_upstream.py."""
    workload = find_workload("cosmoflow").of("sc18")
    dataset = made(tmp_path / "data", "cosmoflow", 3, "sc18")
    assert workload.upstream is not None
    pipeline = workload.upstream.start()
    try:
        resources = Resources(threads=2, staging_bytes=1, batch_bytes=1)
        reader = open_reader(find("upstream"), SampleView(dataset, workload.view), resources, pipeline=pipeline)
        assert reader.sample_view.decode is not None
        assert reader.processes == pipeline.processes
        plan = plan_batches(reader.sample_view, [(e, [np.array([4, 2]), np.array([9, 1])]) for e in range(2)])
        assert largest(plan) == 2 * reader.sample_view.decode.sample_bytes
        tally = Tally()
        check_epochs(plan, deliver(reader, plan, tally))
        assert {epoch: cost.bytes_requested for epoch, cost in sorted(tally.epochs.items())} == reader.requested_bytes(
            plan
        )
    finally:
        pipeline.close()


@needs("fuse")
def test_tensorflow_reads_through_an_emulated_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    records = [bytes([k]) * (100_000 + k) for k in range(40)]
    tfrecord.write(folder / "r", [[record] for record in records])
    with running(FREE, folder, 1, tmp_path / "work") as (emulation, board):
        found = tensorflow().data.TFRecordDataset(str(emulation.mounts[0] / "r"))
        assert [record.numpy() for record in found] == records
        assert board.counters(0).pfs_bytes == (folder / "r").stat().st_size
