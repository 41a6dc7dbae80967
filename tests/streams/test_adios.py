"""One stream of ADIOS2 between two processes: what comes out is what went in, and every wait ends."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.errors import EnvironmentFailure, StreamLost, StreamTimeout
from dlio_bench.harness.commands import doctor
from dlio_bench.harness.streams.adios import (
    BP,
    RDMA,
    SITE,
    SST,
    WAN,
    StreamReader,
    contact_path,
    library,
    require_transport,
    version,
)
from tests.processes import PATIENCE
from tests.streams.writer import arrays

WRITER = Path(__file__).with_name("writer.py")


@contextmanager
def writing(path: Path, engine: str, steps: int, *given: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, str(WRITER), str(path), engine, str(steps), *given]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("engine", [SST, BP])
def test_arrays_of_all_types_and_changing_lengths_arrive_in_order_until_the_end(engine: str, tmp_path: Path) -> None:
    with (
        writing(tmp_path / "stream", engine, 6) as process,
        closing(StreamReader(tmp_path / "stream", engine=engine)) as reader,
    ):
        for step in range(6):
            came = reader.next(PATIENCE)
            assert came is not None
            wanted = arrays(step)
            assert came.keys() == wanted.keys()
            for name, array in wanted.items():
                assert came[name].dtype == array.dtype
                assert np.array_equal(came[name], array)
        assert reader.next(PATIENCE) is None
        assert process.wait(PATIENCE) == 0
    assert contact_path(tmp_path / "stream", engine).exists() == (engine == BP)  # a contact file ends with its writer


def test_an_array_comes_into_the_front_of_a_longer_one_and_not_into_a_shorter(tmp_path: Path) -> None:
    with writing(tmp_path / "stream", SST, 2), closing(StreamReader(tmp_path / "stream")) as reader:
        assert reader.begin(PATIENCE)
        out, wanted = np.zeros(9, np.uint8), arrays(0)["uint8"]
        assert np.shares_memory(reader.get("uint8", out), out)
        assert np.array_equal(out[: len(wanted)], wanted)
        reader.end()
        assert reader.begin(PATIENCE)
        with pytest.raises(ValueError, match="does not fit"):
            reader.get("uint8", out[:1])
        reader.end()


def test_a_writer_waits_while_its_queue_is_full(tmp_path: Path) -> None:
    with (
        writing(tmp_path / "stream", SST, 9, "QueueLimit=2", "QueueFullPolicy=Block") as process,
        closing(StreamReader(tmp_path / "stream")) as reader,
    ):
        assert process.stdout is not None
        assert reader.begin(PATIENCE)
        assert [int(process.stdout.readline()) for _ in range(2)] == [0, 1]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)  # it cannot have written all
        reader.end()
        numbers = 1
        while reader.next(PATIENCE) is not None:
            numbers += 1
        assert numbers == 9


def test_a_writer_that_is_killed_and_one_that_says_nothing_are_told_in_time(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    with writing(path, SST, 1, "hold=1") as process, closing(StreamReader(path)) as reader:
        assert reader.next(PATIENCE) is not None
        with pytest.raises(StreamTimeout, match=r"sent nothing for 0\.1 s"):
            reader.next(0.1)
        process.kill()
        with pytest.raises(StreamLost, match="The writer of the stream stream has ended before the stream did"):
            reader.next(PATIENCE)
    assert contact_path(path).exists()  # that of a killed writer stays


def test_a_writer_that_does_not_come_is_told_in_time(tmp_path: Path) -> None:
    with pytest.raises(StreamTimeout, match=r"did not come within 0\.1 s"):
        StreamReader(tmp_path / "stream", join_seconds=0.1)


def test_doctor_names_the_version(tmp_path: Path) -> None:
    [finding] = [finding for finding in doctor.examine(tmp_path) if finding.name == "ADIOS2"]
    assert (finding.ok, finding.found) == (True, version())


def test_a_transport_that_adios2_would_not_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = library()
    assert installed is not None
    require_transport(WAN)
    with pytest.raises(EnvironmentFailure, match=r"ADIOS2 [\d.]+ in .* takes evpath instead"):
        require_transport(RDMA)  # no wheel has it
    (tmp_path / "lib").symlink_to(installed.parent)
    monkeypatch.setenv(SITE, str(tmp_path))
    with pytest.raises(EnvironmentFailure, match=f"in {tmp_path}/lib/.* takes evpath instead"):
        require_transport(RDMA)
