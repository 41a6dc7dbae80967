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


def test_epochs_of_more_steps_than_the_dataset_has_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    data = made(tmp_path / "data", "cdb", 8).folder
    asked = ("--steps-per-epoch", "9", "--data", str(data), "--dry-run")
    assert "only 8 steps" in refused("run", "cdb", "--tiny", *asked)
