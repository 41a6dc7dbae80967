"""Reading straight from extents: the parts of a long sample, when they are taken together, are read as one."""

import os
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.batches import Batch, Block
from dlio_bench.counters import Cost
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.readers.session import plan_batches
from dlio_bench.harness.storage import extents as extents_module
from dlio_bench.harness.storage.extents import ExtentReader
from tests.datasets import made, view_of


@pytest.mark.parametrize("variant", ["sc18", "cori"])
def test_chunks_taken_together_are_read_whole(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = view_of(made(tmp_path / "data", {"sc18": "cosmoflow", "cori": "cdb"}[variant], 3, variant))
    batch = plan_batches(form, [(0, [np.array([2, 0, 1])])])[0]
    real, calls = os.preadv, []
    monkeypatch.setattr(os, "preadv", lambda *call: calls.append(call) or real(*call))
    found = []
    for whole in (False, True):
        calls.clear()
        extents, content = ExtentReader(form.dataset, form.fields), np.zeros(batch.bytes, dtype=np.uint8)
        work = extents.prepare([batch.ids], chunk_bytes=999)
        chunks, cost = range(len(work.batches)), Cost()
        for part in [chunks] if whole else [range(chunk, chunk + 1) for chunk in chunks]:
            extents.fetch(work, part, memoryview(content), cost)
        extents.close()
        found.append(len(calls))
        assert cost.bytes_requested == form.stored_size(batch.ids)
        assert find_damage(Batch(batch.ids, (Block(content, batch.starts),)), form) == []
    apart, together = found
    assert together <= apart / 2


def test_a_long_field_is_checked_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents_module, "CHECKED_BYTES", 1000)
    form = view_of(made(tmp_path / "data", "cdb", 2))
    batch = plan_batches(form, [(0, [np.array([1, 0])])])[0]
    assert form.dataset.locate(batch.ids, form.fields)[2].min() > 1000
    extents = ExtentReader(form.dataset, form.fields, check=True)
    extents.read(batch.ids, memoryview(bytearray(batch.bytes)), Cost())  # as generated
    extents.close()
