"""The doctor: a real examination, what it says of what is broken, and its table."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from dlio_bench.harness.cluster import launch_site
from dlio_bench.harness.cluster.launch_site import LaunchSite
from dlio_bench.harness.cluster.mpi_library import ProbeOutcome
from dlio_bench.harness.commands import doctor
from dlio_bench.harness.commands.doctor import Finding, examine, exit_status, last_words, render
from tests.processes import PATIENCE

pytestmark = pytest.mark.slow


def _named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


def test_a_real_examination_finds_a_working_machine(tmp_path: Path) -> None:
    findings = examine(tmp_path / "data" / "not-made-yet")
    assert exit_status(findings) == 0, render(findings)
    assert _named(findings, "packages").ok
    assert "two ranks meet" in _named(findings, "MPI library").found
    assert "resident 1.0 after a read" in _named(findings, "cache control").found
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind
    assert json.loads(json.dumps([asdict(finding) for finding in findings]))[0].keys() == {"name", "ok", "found", "fix"}
    assert len({finding.name for finding in findings}) == len(findings)


def test_memory_is_not_a_place_for_cold_runs() -> None:
    findings = examine(Path("/dev/shm"))
    for name in ("file system", "cache control"):
        finding = _named(findings, name)
        assert finding.ok is None
        assert "in memory" in finding.found
        assert finding.fix


def test_what_a_container_lacks_is_said_with_what_that_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.emulation, "available", lambda: "No /dev/fuse. Install FUSE 3.")
    fuse = doctor._fuse()
    assert (fuse.ok, fuse.fix) == (None, "Install FUSE 3.")
    assert fuse.found.startswith("No /dev/fuse: upstream, tfdata, torch")
    assert "cannot be run behind an emulated file system" in fuse.found
    monkeypatch.setattr(doctor, "free_bytes", lambda _: 64 << 20)
    memory = doctor._shared_memory(tmp_path)
    assert (memory.ok, "--shm-size" in (memory.fix or "")) == (None, True)
    assert f"67.1 MB free in {tmp_path}: workers of the readers torch" in memory.found
    monkeypatch.setattr(doctor, "free_bytes", lambda _: 1 << 30)
    assert doctor._shared_memory(tmp_path).ok


def test_a_kernel_that_keeps_the_pages_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.cache, "drop", lambda _: None)
    monkeypatch.setattr(doctor.mounts, "memory_backed", lambda _: False)
    findings = examine(tmp_path)
    finding = _named(findings, "cache control")
    assert finding.ok is False
    assert "resident 1.0 after a read, 1.0 after a drop: the kernel keeps the pages" in finding.found
    assert exit_status(findings) == 4


def test_reads_that_are_never_cached_prove_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = doctor.cache.Residency(bytes=1, resident_bytes=0, attestable=True)
    monkeypatch.setattr(doctor.cache, "residency", lambda _: direct)
    finding = _named(examine(tmp_path), "cache control")
    assert finding.ok is None
    assert "not cached here" in finding.found


def test_without_mpi_one_rank_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_site, "detect_site", lambda _: LaunchSite())
    findings = examine(tmp_path)
    finding = _named(findings, "mpirun")
    assert finding.ok is None
    assert "pip install 'dlio-bench[mpi]'" in str(finding.fix)
    assert exit_status(findings) == 0


def test_in_a_job_whose_launcher_is_missing_nothing_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    site = replace(launch_site.detect_site(os.environ), programs={})
    monkeypatch.setattr(launch_site, "detect_site", lambda _: site)
    findings = examine(tmp_path)
    finding = _named(findings, "launcher")
    assert finding.ok is False
    assert "an allocation of 3" in finding.found
    assert "srun" in str(finding.fix)
    assert exit_status(findings) == 4


@pytest.fixture
def mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An mpirun of the site, first on the PATH, that a test fills with a script."""
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("MPI4PY_LIBMPI", raising=False)
    return program


VERSION = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi\n'
HELLO = '{"rank": %d, "size": 1, "version": "Open MPI v5.0.11", "maps": []}'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("sleep 600", "did not meet within 0 s"),
        ("echo 'ImportError: libmpi.so.12: cannot open' >&2; exit 1", "ImportError: libmpi.so.12: cannot open"),
        (f"echo '{HELLO % 0}'; echo '{HELLO % 0}'", "each is alone"),
        ("exit 0", "it said nothing"),
    ],
)
def test_an_mpi_that_does_not_work_is_told_and_kills_nobody(
    mpirun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    mpirun.write_text(f"#!/bin/sh\n{VERSION}{script}\n")
    monkeypatch.setattr(doctor, "_PATIENCE", 0.4 if script.startswith("sleep") else PATIENCE)
    findings = examine(tmp_path)
    assert str(mpirun) in _named(findings, "mpirun").found
    finding = _named(findings, "MPI library")
    assert finding.ok is False
    assert said in finding.found
    assert finding.fix
    assert exit_status(findings) == 4


def test_a_library_that_is_not_mpiruns_is_told() -> None:
    site = LaunchSite("/site/bin/mpirun", "openmpi", libmpi="/site/lib/libmpi.so.40")
    maps = '"maps": ["7f00-7f01 r-xp 0 fe:00 9  /wheel/lib/libmpi.so.40"]'
    out = "".join(f'{{"rank": {rank}, "size": 2, "version": "Open MPI v5.0.11", {maps}}}\n' for rank in (0, 1))
    finding = doctor.judge_hello(ProbeOutcome(0, out, ""), 2, site, "fix")
    assert finding.ok is None
    assert "/wheel/lib/libmpi.so.40 (5.0.11) is loaded, not mpirun's own /site/lib/libmpi.so.40" in finding.found
    assert doctor.judge_hello(ProbeOutcome(0, out, ""), 2, replace(site, libmpi=None), "fix").ok


def test_the_reason_is_picked_out_of_the_noise() -> None:
    noise = "-----\nmpirun has exited due to process rank 1\nExit code:  16\n-----\n"
    assert last_words(noise) == "Exit code:  16"
    assert last_words("Abort(6): Fatal error in internal_Init\n" + noise) == "Abort(6): Fatal error in internal_Init"
    traceback = "Fatal: never mind\nTraceback (most recent call last):\n  x\nImportError: no libmpi\n"
    assert last_words(traceback + noise) == "ImportError: no libmpi"
    assert last_words("") == "it said nothing"


def test_a_start_without_bytecode_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _: str(tmp_path))
    finding = _named(examine(tmp_path), "bytecode")
    assert finding.ok is None
    assert "compileall" in str(finding.fix)


def test_hdf5_locks_where_the_file_system_may_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    assert _named(examine(tmp_path), "HDF5 locking").ok
    monkeypatch.setattr(doctor.mounts, "cache_beyond", lambda _: "lustre")
    findings = examine(tmp_path)
    assert "export HDF5_USE_FILE_LOCKING=FALSE" in str(_named(findings, "HDF5 locking").fix)
    cache_control = _named(findings, "cache control")
    assert cache_control.ok is None  # it worked, but what the client keeps besides cannot be seen
    assert "lustre" in cache_control.found


def test_a_file_system_that_compresses_is_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = doctor.mounts.Mount("/", "btrfs", "/dev/x", ("rw", "compress=zstd:3"))
    monkeypatch.setattr(doctor.mounts, "mount_of", lambda _: mount)
    finding = _named(examine(tmp_path), "file system")
    assert finding.ok is None
    assert "it compresses" in finding.found


findings = st.builds(
    Finding,
    st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=18),
    st.sampled_from([True, False, None]),
    st.text(st.characters(codec="ascii", categories=["L", "Zs"]), max_size=300),
    st.none() | st.text(st.characters(codec="ascii", categories=["L", "Zs"]), max_size=300),
)


@given(st.lists(findings))
def test_the_table_fits_80_columns_and_shows_everything(found: list[Finding]) -> None:
    table = render(found)
    assert all(len(line) <= 80 for line in table.splitlines())
    squeezed = "".join(table.split())
    for finding in found:
        assert "".join(finding.name.split()) in squeezed
        assert "".join((finding.fix or "").split()) in squeezed
    assert exit_status(found) == (4 if any(finding.ok is False for finding in found) else 0)
    assert ("missing or broken" in table) == (exit_status(found) == 4)


def test_the_table_is_aligned() -> None:
    table = render([Finding("Python", True, "3.12"), Finding("MPI library", False, "none", "install one")])
    assert table.splitlines() == [
        "ok  Python       3.12",
        "!!  MPI library  none",
        "                 fix: install one",
        "",
        "1 missing or broken   (ok good, -- worth knowing, !! must be fixed)",
    ]
