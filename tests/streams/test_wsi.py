"""Whole-slide inference, inline and separated by a stream: every tile once, the same probability of every patch."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.benchmarks.wsi.model import PREDICTIONS_FILE
from tests.processes import dlio
from tests.results import load

SLIDES, PATCHES = 14, 4  # of one tile each; patches of a tile


def written(folder: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Slide -> float64 [patches, 3] of x, y and probability."""
    return {path.parent.name: np.loadtxt(path) for path in (folder / "pieces").glob(f"*/{PREDICTIONS_FILE}")}


def test_a_patch_has_the_same_probability_inline_and_from_a_stream(tmp_path: Path) -> None:
    pytest.importorskip("adios2", reason="ADIOS2 is an extra")
    environment = {"DLIO_BENCH_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    dlio(tmp_path, "generate", "wsi", "--tiny", "--files", str(SLIDES), "--out", "data", **environment)
    dlio(
        tmp_path, "run", "wsi", "--tiny", "--data", "data", "--ranks-per-node", "2", "--compute", "infer",
        "--reader", "naive,stream", "--stream", "on-demand", "--producers", "2", "--warmup-trials", "0",
        "--out", "out", **environment,
    )  # fmt: skip
    results = {reader: load(tmp_path / "out" / f"{reader}-1x2")[0] for reader in ("naive", "stream")}
    for result in results.values():
        assert all(check["ok"] for check in result["checks"]), result["checks"]
        assert {"whole dataset", "exactly once", "content", "bytes as planned"} <= {
            check["name"] for check in result["checks"]
        }
        assert "UNTRAINED NETWORK" in result["marks"]
        assert result["trials"][0]["inference"]["samples"] == SLIDES
    inline, separated = (result["trials"][0]["inference"]["scores"] for result in results.values())
    assert separated["dice"] == 1.0
    assert separated["difference"] < 1e-5  # sums in the network may be added up in another order
    assert separated["classified_patches"] == inline["classified_patches"]
    first, second = (written(tmp_path / "out" / f"{reader}-1x2") for reader in results)
    assert sorted(first) == sorted(second) == [f"slide-{number:04d}" for number in range(SLIDES)]
    white = 0
    for slide, patches in first.items():
        assert patches.shape == (PATCHES, 3)
        np.testing.assert_array_equal(patches[:, :2], second[slide][:, :2])
        np.testing.assert_allclose(patches[:, 2], second[slide][:, 2], atol=1e-5)
        white += np.count_nonzero(patches[:, 2] == 0)
    assert 0 < white == SLIDES * PATCHES - inline["classified_patches"]
