"""HDF5 layout and slow-path reading: offsets that are right, properties that are HDF5's defaults."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from dlio_bench.datagen.formats import hdf5
from dlio_bench.errors import DataError


@pytest.mark.parametrize("rows", [1, 64, 5_000_000])
def test_the_file_is_as_hdf5_itself_makes_it_whatever_ends_it(rows: int, tmp_path: Path) -> None:
    datasets = [("b", "<f4", (rows, 4)), ("a", "<i4", (3,)), ("last", "<f8", (rows,))]
    path, own = tmp_path / "a.h5", tmp_path / "own.h5"
    for _ in range(2):  # planned, and from the plan kept
        hdf5.allocate(path, datasets)
    with h5py.File(own, "w") as file:
        for name, dtype, shape in datasets:
            file.create_dataset(name, shape, dtype)[(0,) * len(shape)] = 0
            file.flush()
    assert path.stat().st_size == own.stat().st_size
    assert path.stat().st_blocks * 512 < 1_000_000  # holes are left as holes
    with h5py.File(path) as file, h5py.File(own) as expected:
        assert {name: file[name].id.get_offset() for name in file} == {
            name: expected[name].id.get_offset() for name in expected
        }


def test_read_field_gives_a_part_or_all(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    hdf5.write_chunks(path, "g", {"x": values}, ("v108", "v108"))
    assert hdf5.read_field(path, "g/x") == values.tobytes()
    assert hdf5.read_field(path, "g/x", 1) == values[1].tobytes()


@pytest.mark.parametrize(("dataset", "index"), [("g/absent", None), ("g/x", 5), ("absent/x", 0)])
def test_what_is_not_there_is_named(tmp_path: Path, dataset: str, index: int | None) -> None:
    path = tmp_path / "a.h5"
    hdf5.write_chunks(path, "g", {"x": np.zeros((2, 3), dtype="<f4")}, ("v108", "v108"))
    with pytest.raises(DataError, match=f"{path}: '{dataset}"):
        hdf5.read_field(path, dataset, index)


def test_a_file_that_is_not_hdf5_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"not HDF5")
    with pytest.raises(DataError, match=r"a\.h5"):
        hdf5.read_field(path, "x")
