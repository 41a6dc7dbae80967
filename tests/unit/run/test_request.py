"""What a run needs is looked for before anything is launched."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from tests.datasets import made

PIPELINES = {name: workload.upstream for name, workload in WORKLOADS.items() if workload.upstream is not None}


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("workload", PIPELINES)
@pytest.mark.parametrize("reader", ["tfdata", "upstream", "prefetch"])
def test_a_missing_tensorflow_is_told_to_those_alone_who_need_it(workload: str, reader: str) -> None:
    upstream = PIPELINES[workload]
    options = Options(workload, readers=("naive", reader))
    if reader == "tfdata" or (reader == "upstream" and upstream.tensorflow):
        with pytest.raises(EnvironmentFailure, match=f"'{reader}' needs TensorFlow.*pip install") as told:
            look_up(options)
        assert told.value.status == 4
    else:
        assert tuple(look_up(options).readers) == ("naive", reader)


def test_a_missing_pytorch_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EnvironmentFailure, match=r"'torch' needs PyTorch.*pip install 'dlio-bench\[torch\]'"):
        look_up(Options("cdb", readers=("naive", "torch")))


@pytest.mark.usefixtures("without_tensorflow")
@pytest.mark.parametrize("workload", PIPELINES)
def test_a_published_pipeline_says_truly_whether_it_needs_tensorflow(workload: str) -> None:
    upstream = PIPELINES[workload]
    if upstream.tensorflow:
        with pytest.raises(EnvironmentFailure, match="needs TensorFlow"):
            upstream.start()
    else:
        upstream.start().close()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--reader", "naive", "--tiers", "ram=1GB"], "naive keeps none"),
        (["--reader", "naive", "--tiers", "foo=1GB"], "--tiers names 'foo'"),
        (["--reader", "naive", "--system", "nosuch"], "--system nosuch"),
        (["--reader", "cooperative", "--tiers", "ram=0B"], "none has a size"),
        (["--reader", "cooperative", "--tiers", "disk=1GB", "--local-tier", "nowhere"], "--local-tier nowhere"),
    ],
)
def test_tiers_that_cannot_be_are_refused_before_anything_is_made(
    asked: list[str], says: str, refused: Callable[..., str]
) -> None:
    assert says in refused("run", "cdb", "--tiny", "--dry-run", *asked)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--steps", "4"], "both say how long a trial is"),
        (["--last", "pad"], "--last pad"),
        (["--reader", "parallel-staging", "--tiers", "ram=1GB"], "draws a new order for each"),
        (["--epochs", "0"], "--epochs: '0'"),
        (["--data", "DATA"], "only 8 steps"),
    ],
)
def test_epochs_of_so_many_steps_that_cannot_be_are_refused(
    asked: list[str], says: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    if "--data" in asked:
        made(tmp_path / "data", "cdb", 8)
    asked = [str(tmp_path / "data") if word == "DATA" else word for word in asked]
    assert says in refused("run", "cdb", "--tiny", "--dry-run", "--steps-per-epoch", "9", *asked)
