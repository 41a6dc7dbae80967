"""Ranks of a machine share its GPUs out among themselves."""

from types import SimpleNamespace
from typing import Any

import pytest

from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.training.network import pin_gpu

pytestmark = pytest.mark.slow


class Config:
    """What tensorflow.config does for GPUs."""

    def __init__(self, gpus: int, *, late: bool = False) -> None:
        self._gpus = [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in range(gpus)]
        self._late = late
        self.visible: list[Any] = []
        self.growing: list[Any] = []
        self.experimental = SimpleNamespace(set_memory_growth=self._grow)

    def list_physical_devices(self, kind: str) -> list[Any]:
        assert kind == "GPU"
        return self._gpus

    def set_visible_devices(self, devices: list[Any], kind: str) -> None:
        assert kind == "GPU"
        if self._late:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = devices

    def _grow(self, device: Any, enable: bool) -> None:
        assert enable
        self.growing.append(device)


@pytest.mark.parametrize(("host_rank", "gpu"), [(0, 0), (3, 3), (4, 0), (7, 3)])
def test_each_rank_sees_one_gpu_whose_memory_it_takes_as_needed(host_rank: int, gpu: int) -> None:
    config = Config(4)
    assert pin_gpu(config, host_rank) == f"/physical_device:GPU:{gpu}"
    assert [one.name for one in config.visible] == [one.name for one in config.growing]
    assert config.visible[0].name.endswith(str(gpu))


def test_without_gpus_nothing_is_pinned() -> None:
    assert pin_gpu(Config(0), 1) is None


def test_pinning_after_tensorflow_began_is_a_failure() -> None:
    with pytest.raises(EnvironmentFailure, match=r"GPU:0 cannot be given to rank 0 of this machine"):
        pin_gpu(Config(1, late=True), 0)


def test_tensorflow_has_what_pinning_asks_for() -> None:
    config = tensorflow().config
    assert callable(config.set_visible_devices)
    assert callable(config.experimental.set_memory_growth)
    assert isinstance(config.list_physical_devices("GPU"), list)
