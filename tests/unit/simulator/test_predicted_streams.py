"""Predictions of readers that stream, held against what can be worked out by hand. Nothing here needs ADIOS2."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.system import Rates, Stream, System, Tier
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.jobs import jobs
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.asked.training import TrainedModel
from dlio_bench.harness.commands.run.predicted import prediction
from dlio_bench.harness.commands.run.predicted.streams import Queue, rates_of
from dlio_bench.harness.plan.policies import find as policy
from dlio_bench.harness.simulator.kernel import Clock, Process
from dlio_bench.harness.storage.pfs.spec import parse_spec
from dlio_bench.harness.streams.dealing import putting
from dlio_bench.harness.streams.settings import Streaming
from dlio_bench.harness.streams.settings import find as mode
from tests.datasets import made

FAST = Rates(((1, 10_000.0), (4, 10_000.0)))
QUICK = Stream(((1000, 10_000.0),))
EPOCHS = 2


def system(*, pfs: float = 10_000.0, link: Stream | None = QUICK, network: float = 0.0) -> System:
    tiers = (Tier("staging", 1 << 28, 4, FAST, FAST), Tier("ram", 1 << 30, 4, FAST, FAST))
    reads = Stream(((1000, pfs),))
    return System(
        name="known", compute=None, device=None, ranks_per_node=1, preprocess=float("inf"), network=network,
        pfs_link=pfs, pfs=Rates(((1, pfs), (8, pfs))), tiers=tiers, pfs_stream=reads, adios_stream=link,
    )  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("data") / "hepcnnb", "hepcnnb", 8)


def job(dataset: Dataset, streaming: Streaming, *, models: int = 1, ranks: int = 2, step_seconds: float = 0.0) -> Job:
    asked = Options(
        "hepcnnb", readers=("double-buffer",), data=dataset.folder, tiny=True, epochs=EPOCHS, batch=4, compute="none",
        seed=5, nodes=(1,), ranks_per_node=ranks, emulate_pfs=parse_spec("bandwidth=1MB/s"), models=str(models),
        cache="first-epoch-cold",
    )  # fmt: skip
    request = look_up(asked)
    (of_files,) = jobs(request, request.trial_size(dataset.training_samples), dataset.folder, None)
    assert of_files.models == (TrainedModel(),) * models
    row = replace(policy("stream"), order_known=streaming.how.known)
    return replace(
        of_files, readers={"stream": row}, streaming=streaming, node_memory=8 << 30, step_seconds=step_seconds
    )


def predict(dataset: Dataset, streaming: Streaming, machine: System, **changed: Any) -> dict[str, Any]:
    (row,) = prediction.predict(job(dataset, streaming, **changed), dataset, machine)
    assert row["reason"] is None
    return row


def megabytes(dataset: Dataset, ranks: int = 2) -> float:
    """Of all epochs, as far as they fill steps."""
    ids = range(dataset.training_samples // (4 * ranks) * 4 * ranks)
    return EPOCHS * int(dataset.locate(np.array(ids), find("hepcnnb").view)[2].sum()) / 1e6


@pytest.mark.parametrize("producers", [1, 3])
@pytest.mark.parametrize("how", ["planned", "round-robin", "all"])
def test_producers_that_read_slowly_decide(dataset: Dataset, how: str, producers: int) -> None:
    row = predict(dataset, Streaming(how, producers), system(pfs=1.0))
    assert row["elapsed_seconds"] == pytest.approx(megabytes(dataset), rel=0.05)
    assert row["bytes"]["pfs"] == row["bytes"]["remote"] == pytest.approx(megabytes(dataset) * 1e6)
    assert row["stall_share"] == pytest.approx(1, abs=0.01)


def test_a_slow_link_decides_and_is_that_of_a_producer(dataset: Dataset) -> None:
    slow = system(link=Stream(((1000, 1.0),)))
    row = predict(dataset, Streaming("planned", 1), slow)
    assert row["elapsed_seconds"] == pytest.approx(megabytes(dataset), rel=0.05)
    two = predict(dataset, Streaming("planned", 2), slow)
    assert two["elapsed_seconds"] == pytest.approx(megabytes(dataset) / 2, rel=0.05)


def test_compute_that_is_longer_hides_the_stream(dataset: Dataset) -> None:
    for streaming in (Streaming("planned", 1), Streaming("planned", 0)):
        row = predict(dataset, streaming, system(pfs=100.0), step_seconds=0.5)
        steps = dataset.training_samples // 8 * EPOCHS
        assert row["elapsed_seconds"] == pytest.approx(0.5 * steps, rel=0.01)
        assert row["stall_share"] < 0.01


def test_each_step_adds_the_latency_of_the_link(dataset: Dataset) -> None:
    # 1000 bytes take 0.1 s, whatever follows costs nothing: each trainer takes its steps one after the other
    late = system(link=Stream(((1000, 0.01), (100_000_000, 1000.0))))
    steps = dataset.training_samples // 8 * EPOCHS
    by_plan = predict(dataset, Streaming("planned", 1), late)
    assert by_plan["elapsed_seconds"] == pytest.approx(0.1 * steps, rel=0.1)
    # a trainer that gets every step takes twice as many
    assert predict(dataset, Streaming("all", 1), late)["elapsed_seconds"] == pytest.approx(0.2 * steps, rel=0.1)


@pytest.mark.parametrize("how", ["planned", "round-robin", "all"])
def test_a_longer_queue_is_never_slower(dataset: Dataset, how: str) -> None:
    machine = system(pfs=2.0, link=Stream(((1000, 3.0),)))
    elapsed = [
        predict(dataset, Streaming(how, 2, queue=queue), machine, step_seconds=0.05)["elapsed_seconds"]
        for queue in (1, 2, 8, 100)
    ]
    assert elapsed == sorted(elapsed, reverse=True)


def test_a_full_queue_waits_for_the_slowest_of_its_readers() -> None:
    clock, put = Clock(), []
    queue = Queue(clock, 2, readers=2)

    def copied() -> Process:
        yield clock.now + 0.5

    def producer() -> Process:
        for _ in range(4):
            yield from queue.put(copied())
            put.append(clock.now)

    def reader(number: int, seconds: float) -> Process:
        for step in range(4):
            yield from queue.await_step(step)
            yield clock.now + seconds
            queue.release(number, step)

    for process in (producer(), reader(0, 1.0), reader(1, 10.0)):
        clock.start(process)
    clock.run()
    # two steps, then one as the slow reader is past its first at 10.5 s, and one at 20.5 s
    assert put == [0.5, 1.0, 11.0, 21.0]


@pytest.mark.parametrize("how", ["planned", "round-robin", "all"])
def test_models_on_one_stream_are_read_for_once(dataset: Dataset, how: str) -> None:
    alone = predict(dataset, Streaming(how, 1), system(pfs=1.0))
    three = predict(dataset, Streaming(how, 1), system(pfs=1.0), models=3)
    assert three["bytes"]["pfs"] == alone["bytes"]["pfs"]
    assert three["bytes"]["remote"] == 3 * alone["bytes"]["remote"]
    assert three["elapsed_seconds"] == pytest.approx(alone["elapsed_seconds"], rel=0.05)
    # the same models, each reading for itself
    apart = replace(job(dataset, Streaming(how, 1), models=3), readers={"db": policy("double-buffer")})
    (row,) = prediction.predict(apart, dataset, system(pfs=1.0))
    assert row["bytes"]["pfs"] == 3 * alone["bytes"]["pfs"]


def test_a_producer_in_the_process_reads_for_its_trainer(dataset: Dataset) -> None:
    row = predict(dataset, Streaming("planned", 0), system(pfs=1.0))
    assert row["elapsed_seconds"] == pytest.approx(megabytes(dataset), rel=0.05)
    assert row["bytes"] == {"pfs": pytest.approx(megabytes(dataset) * 1e6), "local": 0}


@pytest.mark.parametrize(
    ("streaming", "word"),
    [(Streaming("on-demand"), "--stream on-demand"), (Streaming(engine="bp"), "--stream-engine bp"),
     (Streaming(full="discard"), "--stream-full discard")],
)  # fmt: skip
def test_what_is_not_modelled_of_streams_says_so(dataset: Dataset, streaming: Streaming, word: str) -> None:
    (row,) = prediction.predict(job(dataset, streaming), dataset, system())
    assert row["elapsed_seconds"] is None
    assert word in row["reason"]


def test_a_rate_that_was_not_measured_is_taken_from_others_and_said(dataset: Dataset) -> None:
    def at(machine: System, *, virtual: bool, nodes: int) -> tuple[float, bool]:
        rates, note = rates_of(machine, virtual=virtual, nodes=nodes)
        return rates.seconds(1e9), note is None

    assert at(system(), virtual=False, nodes=2) == (pytest.approx(0.1), True)
    unknown = system(link=None, network=500.0)
    assert at(unknown, virtual=False, nodes=2) == (pytest.approx(2), False)
    assert at(unknown, virtual=True, nodes=2) == at(unknown, virtual=False, nodes=1) == (pytest.approx(0.1), False)
    for streaming, noted in ((Streaming(), True), (Streaming(producers=0), False)):
        notes = " ".join(prediction.require_known(job(dataset, streaming), unknown, dataset.digest))
        assert ("rate of streams: they are taken to be as fast as memory" in notes) == noted


def test_the_same_ranks_of_all_models_take_a_batch() -> None:
    models = [(0, 0), (0, 1), (1, 0), (1, 1)]  # of trainers: the model, and the number in it
    assert putting(mode("planned"), 1, models) == [1, 3]
    assert putting(mode("round-robin"), 1, models) == [0, 0]
    assert putting(mode("all"), 1, models) == [0]
    assert Streaming(queue=2).steps_held(mode("all"), 4) == 5
    assert Streaming(queue=2).steps_held(mode("planned"), 4) == 2
