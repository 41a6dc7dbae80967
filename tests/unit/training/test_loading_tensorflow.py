"""TensorFlow loads without what only other programs give it, in processes of this one alone. Needs no TensorFlow."""

import gc
import importlib
import sys

import pytest

import dlio_bench
from dlio_bench.benchmarks import tensors
from dlio_bench.errors import UsageError

UNUSED = "colorsys"  # a module of Python that nothing here imports


def can_be_imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return sys.modules.pop(name) is not None


@pytest.mark.parametrize("own_process", [True, False])
def test_what_keras_does_not_need_is_missing_only_while_it_loads(
    own_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    during = []
    monkeypatch.setattr(tensors, "import_module", lambda _: during.append((can_be_imported(UNUSED), gc.isenabled())))
    monkeypatch.setattr(tensors, "own_process", own_process)
    monkeypatch.setattr(tensors, "_UNUSED", (UNUSED,))
    monkeypatch.delitem(sys.modules, UNUSED, raising=False)
    tensors._load()
    assert during == [(not own_process, False)]
    assert can_be_imported(UNUSED)
    assert gc.isenabled()


def test_the_library_works_in_processes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "own_process", True)
    with pytest.raises(UsageError):
        dlio_bench.load("", batch=0)
    assert not tensors.own_process
