"""Launchers: exact argv for each, the choice among them, the machine they are chosen for, and a real mpirun."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import mpi_library
from dlio_bench.harness.cluster.allocation import nodes as nodes_of
from dlio_bench.harness.cluster.launch_site import LaunchSite, detect_site, slurm_plugins
from dlio_bench.harness.cluster.launchers import LAUNCHERS, LaunchRequest, choose
from dlio_bench.harness.cluster.mpi_library import (
    hello_command,
    loaded_library,
    pairing_env,
    parse_greetings,
    run_probe,
)
from dlio_bench.harness.cluster.start import launch_env, single_host_env
from tests.processes import PATIENCE, until
from tests.ranks import mpirun

RUN = ("python", "-m", "rank")
ENV = {"B": "2,3", "A": "$1"}
ONE = LaunchRequest(1, 1, RUN)
REAL = LaunchRequest(4, 8, RUN, env=ENV)
VIRTUAL = LaunchRequest(4, 2, RUN, virtual=True)
OPENMPI = LaunchSite("/o/mpirun", "openmpi", cores=16)
MPICH = LaunchSite("/m/mpirun", "mpich", root=True, cores=2)

SRUN = "--kill-on-bad-exit=1 --export=ALL --cpu-bind=none --label"
HERE = replace(OPENMPI, cores=2, programs={"srun": "/s/srun"})
ARGV: dict[str, tuple[str, LaunchRequest, LaunchSite, str]] = {
    "local": ("local", ONE, LaunchSite(), ""),
    "open mpi on a cluster":
        ("mpirun", REAL, OPENMPI, "/o/mpirun --map-by ppr:8:node --bind-to none -x A -x B -n 32"),
    "open mpi, root":
        ("mpirun", replace(REAL, env={}), replace(OPENMPI, root=True),
         "/o/mpirun --allow-run-as-root --map-by ppr:8:node --bind-to none -n 32"),
    "open mpi, a rank a core":
        ("mpirun", VIRTUAL, replace(OPENMPI, cores=8), "/o/mpirun --map-by ppr:8:node --bind-to none -n 8"),
    "open mpi, more ranks than cores":
        ("mpirun", VIRTUAL, replace(OPENMPI, cores=7),
         "/o/mpirun --map-by ppr:8:node:OVERSUBSCRIBE --bind-to none -n 8"),
    "open mpi leads lines by the rank":
        ("mpirun", VIRTUAL, replace(OPENMPI, mpi_version="5.0.11"),
         "/o/mpirun --map-by ppr:8:node --bind-to none --output tag -n 8"),
    "open mpi 4 does so too":
        ("mpirun", VIRTUAL, replace(OPENMPI, mpi_version="4.1.4"),
         "/o/mpirun --map-by ppr:8:node --bind-to none --tag-output -n 8"),
    "mpich on a cluster": ("mpirun", REAL, MPICH, "/m/mpirun -n 32 -ppn 8 -prepend-rank -genv A $1 -genv B 2,3"),
    "mpich on one machine": ("mpirun", VIRTUAL, MPICH, "/m/mpirun -n 8 -ppn 8 -prepend-rank"),
    "intel":
        ("mpirun", REAL, replace(MPICH, mpi_flavor="intel"),
         "/m/mpirun -n 32 -ppn 8 -prepend-rank -genv A $1 -genv B 2,3"),
    "some other mpirun": ("mpirun", REAL, LaunchSite("/x/mpirun"), "/x/mpirun -n 32"),
    "slurm": ("srun", REAL, OPENMPI, f"srun --mpi=pmix {SRUN} -N 4 -n 32 --ntasks-per-node 8"),
    "slurm, virtual nodes, few cores":
        ("srun", VIRTUAL, HERE, f"/s/srun --mpi=pmix {SRUN} --overcommit -N 1 -n 8 --ntasks-per-node 8"),
    "slurm with mpich": ("srun", ONE, MPICH, f"srun --mpi=pmi2 {SRUN} -N 1 -n 1 --ntasks-per-node 1"),
    "slurm where the site says how":
        ("srun", ONE, replace(OPENMPI, mpi_type="pmix_v4"), f"srun --mpi=pmix_v4 {SRUN} -N 1 -n 1 --ntasks-per-node 1"),
    "summit":
        ("jsrun", REAL, LaunchSite(), "jsrun --nrs 4 --rs_per_host 1 --tasks_per_rs 8 --cpu_per_rs ALL_CPUS "
         "--gpu_per_rs ALL_GPUS --bind none -E A=$1 -E B=2,3"),
    "flux":
        ("flux", REAL, LaunchSite(),
         "flux run -N 4 --tasks-per-node=8 --exclusive --label-io -o cpu-affinity=off --env=A=$$1 --env=B=2,3"),
    "pals":
        ("pals", REAL, LaunchSite(programs={"pals": "/p/mpiexec"}),
         "/p/mpiexec -n 32 --ppn 8 --cpu-bind none --envall --env A=$1 --env B=2,3"),
    "none": ("none", REAL, LaunchSite(started=(4, 8)), f"{sys.executable} -P -m dlio_bench.harness.cluster.joined"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGV)
def test_argv_is_what_the_manual_says(case: str) -> None:
    name, job, site, before_command = ARGV[case]
    command = RUN[1:] if name == "none" else RUN  # the ranks are interpreters already
    assert LAUNCHERS[name](job, site) == (*before_command.split(), *command)


def test_every_launcher_has_a_case() -> None:
    assert {name for name, *_ in ARGV.values()} == set(LAUNCHERS)


def test_local_is_for_one_rank() -> None:
    with pytest.raises(UsageError, match=r"8 are asked for \(4 nodes x 2\)"):
        LAUNCHERS["local"](VIRTUAL, LaunchSite())


def test_the_users_options_come_last_before_the_command() -> None:
    site = replace(FULL, arguments=("--site", "a b"))
    for name in ASKED:
        assert LAUNCHERS[name](REAL, site)[-2 - len(RUN) :] == ("--site", "a b", *RUN)
    assert choose({}, ONE, site) == "mpirun"  # there is a launcher to give them to
    with pytest.raises(UsageError, match=r"'local' takes no options.*'--site 'a b''"):
        LAUNCHERS["local"](ONE, site)


def test_a_binding_that_site_or_user_has_chosen_stays(tmp_path: Path) -> None:
    bound = detect_site({"PATH": str(tmp_path), "SLURM_CPU_BIND": "cores"})
    assert not any(word.startswith("--cpu-bind") for word in LAUNCHERS["srun"](REAL, bound))
    step = detect_site({"PATH": str(tmp_path), "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_STEP_ID": "0"})
    assert "--cpu-bind=none" in LAUNCHERS["srun"](REAL, step)  # of the step that this process is in
    policy = replace(OPENMPI, bound=frozenset({"mpirun"}))
    assert "--bind-to" not in LAUNCHERS["mpirun"](REAL, policy)
    said = replace(OPENMPI, arguments=("--bind-to", "core", "--map-by", "ppr:8:node:PE=2"))
    argv = LAUNCHERS["mpirun"](REAL, said)  # Open MPI refuses an option that is given twice
    assert argv.count("--bind-to") == argv.count("--map-by") == 1
    assert LAUNCHERS["srun"](REAL, replace(OPENMPI, arguments=("--cpu-bind=cores",))).count("--cpu-bind=none") == 0


def test_processors_that_slurm_gives_are_counted() -> None:
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_JOB_CPUS_PER_NODE": "64(x3),1"}
    site = detect_site(env)
    assert site.cores == 1
    assert "--overcommit" in LAUNCHERS["srun"](LaunchRequest(4, 2, RUN), site)
    assert "ppr:2:node:OVERSUBSCRIBE" in LAUNCHERS["mpirun"](
        LaunchRequest(4, 2, RUN), replace(site, mpi_flavor="openmpi")
    )


def test_slurm_is_asked_what_connects_ranks(tmp_path: Path) -> None:
    says = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4,pmix_v5"
    srun = _program(tmp_path / "srun", says)
    plugins = slurm_plugins(str(srun), {})
    assert plugins == ("pmix", "none", "pmi2", "pmix_v4", "pmix_v5")
    assert slurm_plugins(str(_program(tmp_path / "old", "srun: MPI types are...\nsrun: none\nsrun: pmix_v3")), {}) == (
        "none",
        "pmix_v3",
    )
    assert slurm_plugins(str(_program(tmp_path / "broken", "pmix", status=1)), {}) == ()
    assert launch_env(REAL, replace(OPENMPI, plugins=plugins), {})["DLIO_BENCH_MPI_PLUGINS"].startswith("pmix, none")


@pytest.mark.parametrize(
    ("flavor", "plugins", "chosen"),
    [
        ("openmpi", ("none", "pmix_v3", "pmix_v4"), "pmix_v4"),
        ("openmpi", ("none", "pmix", "pmix_v4"), "pmix"),
        ("mpich", ("none", "pmix", "cray_shasta"), "pmix"),
        ("mpich", ("none", "cray_shasta"), "cray_shasta"),
    ],
)
def test_ranks_are_connected_by_what_slurm_has(flavor: "str | None", plugins: tuple[str, ...], chosen: str) -> None:
    site = replace(OPENMPI, mpi_flavor=flavor, plugins=plugins)  # type: ignore[arg-type]  # one of its literals
    assert f"--mpi={chosen}" in LAUNCHERS["srun"](REAL, site)


def test_a_slurm_that_cannot_connect_ranks_is_refused() -> None:
    site = replace(OPENMPI, plugins=("none", "pmi2"))
    with pytest.raises(EnvironmentFailure, match=r"plug-in pmix: `srun --mpi=list` has none, pmi2.*SLURM_MPI_TYPE"):
        LAUNCHERS["srun"](REAL, site)
    assert "--mpi=none" in LAUNCHERS["srun"](ONE, site)
    assert "--mpi=pmi2" in LAUNCHERS["srun"](REAL, replace(site, mpi_type="pmi2"))


def test_ranks_that_are_there_must_be_as_many_as_are_asked_for() -> None:
    site = replace(FULL, started=(2, 8))
    with pytest.raises(UsageError, match=r"2x8 ranks were started .*, but 4x8 are asked for"):
        LAUNCHERS["none"](REAL, site)
    with pytest.raises(UsageError, match="no ranks were started"):
        LAUNCHERS["none"](REAL, FULL)
    assert choose({"SLURM_JOB_ID": "7"}, REAL, site) == "none"
    with pytest.raises(UsageError, match="started already"):
        choose({}, REAL, site, "srun")


def _after(argv: tuple[str, ...], option: str) -> int:
    return int(argv[argv.index(option) + 1])


ASKED: dict[str, Callable[[tuple[str, ...]], int]] = {
    "mpirun": lambda argv: _after(argv, "-n"),
    "srun": lambda argv: _after(argv, "-N") * _after(argv, "--ntasks-per-node"),
    "jsrun": lambda argv: _after(argv, "--nrs") * _after(argv, "--rs_per_host") * _after(argv, "--tasks_per_rs"),
    "flux": lambda argv: _after(argv, "-N") * int(argv[4].removeprefix("--tasks-per-node=")),
    "pals": lambda argv: _after(argv, "-n"),
}


@given(
    name=st.sampled_from(sorted(ASKED)),
    nodes=st.integers(1, 5000),
    ranks=st.integers(1, 128),
    virtual=st.booleans(),
    flavor=st.sampled_from([None, "openmpi", "mpich", "intel"]),
    cores=st.integers(1, 256),
)
def test_every_launcher_starts_all_ranks_of_one_command(
    name: str, nodes: int, ranks: int, virtual: bool, flavor: "str | None", cores: int
) -> None:
    job = LaunchRequest(nodes, ranks, RUN, virtual, {"NAME": "value"})
    argv = LAUNCHERS[name](job, LaunchSite("mpirun", flavor, cores=cores))  # type: ignore[arg-type]  # sampled by name
    assert argv[-len(RUN) :] == RUN
    assert ASKED[name](argv) == nodes * ranks == job.ranks == job.hosts * job.ranks_per_host


EVERY = {name: f"/x/{name}" for name in ("srun", "jsrun", "flux", "pals")}
FULL = replace(OPENMPI, programs=EVERY)


@pytest.mark.parametrize(
    ("env", "job", "site", "expected"),
    [
        ({}, ONE, FULL, "local"),
        ({}, ONE, LaunchSite(), "local"),
        ({}, VIRTUAL, FULL, "mpirun"),
        ({"SLURM_JOB_ID": "7"}, VIRTUAL, FULL, "srun"),
        ({"SLURM_JOB_ID": "7"}, ONE, FULL, "srun"),
        ({"SLURM_JOB_ID": "7", "FLUX_URI": "local:///x"}, REAL, FULL, "flux"),
        ({"FLUX_JOB_ID": "f1"}, REAL, FULL, "flux"),
        ({"LSB_JOBID": "7"}, REAL, FULL, "jsrun"),
        ({"LSB_JOBID": "7"}, REAL, OPENMPI, "mpirun"),
        ({"PBS_JOBID": "7"}, REAL, FULL, "pals"),
        ({"PBS_JOBID": "7"}, REAL, OPENMPI, "mpirun"),
    ],
)
def test_the_scheduler_chooses(env: dict[str, str], job: LaunchRequest, site: LaunchSite, expected: str) -> None:
    assert choose(env, job, site) == expected
    assert choose(env, job, FULL, requested="mpirun") == "mpirun"


def test_an_unknown_launcher_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no launcher 'aprun'.*local, mpirun, srun, jsrun, flux, pals or none"):
        choose({}, ONE, FULL, requested="aprun")


@pytest.mark.parametrize(
    ("env", "asked", "fix"),
    [
        ({}, None, r"pip install 'dlio-bench\[mpi\]'"),
        ({"SLURM_JOB_ID": "7"}, None, "Slurm's commands"),
        ({}, "jsrun", r"as asked.*job step manager"),
        ({}, "flux", "Flux's command"),
        ({}, "pals", "palstat"),
    ],
)
def test_a_missing_program_is_named_with_its_fix(env: dict[str, str], asked: str | None, fix: str) -> None:
    with pytest.raises(EnvironmentFailure, match=fix):
        choose(env, VIRTUAL, LaunchSite(), asked)


def test_nodes_of_an_allocation(tmp_path: Path) -> None:
    pbs = tmp_path / "pbs"
    pbs.write_text("n1\nn1\nn2\nn3\n")
    summit = tmp_path / "summit"
    summit.write_text("batch5\n" + "h01\n" * 42 + "h02\n" * 42)
    plain = tmp_path / "lsf"
    plain.write_text("h01\nh02\nh03\n")
    assert nodes_of({}) is None
    assert nodes_of({"SLURM_JOB_NUM_NODES": "12"}) == 12
    assert nodes_of({"PBS_NODEFILE": str(pbs)}) == 3
    assert nodes_of({"PBS_NODEFILE": str(tmp_path / "gone")}) is None
    assert nodes_of({"LSB_DJOB_HOSTFILE": str(summit)}) == 2
    assert nodes_of({"LSB_DJOB_HOSTFILE": str(plain)}) == 3


def _program(path: Path, says: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_flux_is_asked_for_its_size(tmp_path: Path) -> None:
    _program(tmp_path / "flux", "6")
    env = {"FLUX_URI": "local:///x", "SLURM_JOB_NUM_NODES": "99"}  # Flux inside a Slurm job: Flux's size counts
    assert nodes_of({**env, "PATH": str(tmp_path)}) == 6
    assert nodes_of({**env, "PATH": str(tmp_path / "nothing")}) is None


def test_a_sites_mpirun_comes_before_the_wheels_and_brings_its_library(tmp_path: Path) -> None:
    _program(tmp_path / "bin/mpirun", "mpirun (Open MPI) 4.1.4")
    library = tmp_path / "lib64/libmpi.so.40"
    library.parent.mkdir()
    library.touch()
    site = detect_site({"PATH": str(tmp_path / "bin")})
    assert (site.mpirun, site.mpi_flavor, site.mpi_version) == (str(tmp_path / "bin/mpirun"), "openmpi", "4.1.4")
    assert site.libmpi == str(library)
    assert launch_env(ONE, site, {})["MPI4PY_LIBMPI"] == str(library)


@pytest.mark.parametrize(
    ("says", "flavor", "version"),
    [
        ("HYDRA build details:\n    Version:      4.0.2", "mpich", "4.0.2"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005", "intel", "2021.11"),
    ],
)
def test_hydras_are_told_apart(tmp_path: Path, says: str, flavor: str, version: str) -> None:
    _program(tmp_path / "bin/mpirun", says)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmpi.so.40").touch()  # of another family: not to be taken
    site = detect_site({"PATH": str(tmp_path / "bin")})
    assert (site.mpi_flavor, site.mpi_version, site.libmpi) == (flavor, version, None)


def test_without_one_on_the_path_the_wheel_beside_python_is_found(tmp_path: Path) -> None:
    _program(tmp_path / "mpirun", "an mpirun of nobody we know", status=1)
    site = detect_site({"PATH": str(tmp_path)})
    assert site.mpirun == str(Path(sys.executable).with_name("mpirun"))
    assert site.libmpi is not None
    assert Path(site.libmpi).is_relative_to(Path(sys.prefix).resolve())


def test_pals_is_known_by_its_neighbour_and_is_not_taken_for_an_mpirun(tmp_path: Path) -> None:
    _program(tmp_path / "mpiexec", "mpiexec version 1.2.12")
    assert "pals" not in detect_site({"PATH": str(tmp_path)}).programs
    _program(tmp_path / "palstat", "")
    site = detect_site({"PATH": str(tmp_path)})
    assert site.programs == {"pals": str(tmp_path / "mpiexec")}
    assert site.mpirun != str(tmp_path / "mpiexec")


def test_what_the_user_has_set_stays() -> None:
    assert single_host_env("openmpi", {"OMPI_MCA_pml": "ucx"}).keys() >= {"OMPI_MCA_btl"}
    assert "OMPI_MCA_pml" not in single_host_env("openmpi", {"OMPI_MCA_pml": "ucx"})
    assert single_host_env("mpich", {}) == {}
    assert pairing_env("/lib/libmpi.so.40", {"MPI4PY_LIBMPI": "/mine"}) == {}
    assert pairing_env(None, {}) == {}


def test_only_jobs_on_one_machine_give_up_the_fabric() -> None:
    site = replace(OPENMPI, libmpi="/l/libmpi.so.40")
    assert launch_env(REAL, site, {}) == {"MPI4PY_LIBMPI": "/l/libmpi.so.40", **ENV}
    assert launch_env(VIRTUAL, site, {})["OMPI_MCA_pml"] == "ob1"
    intel = launch_env(REAL, replace(MPICH, mpi_flavor="intel"), {})
    assert intel["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] == "off"


def test_a_real_mpirun_starts_the_ranks_with_its_own_library() -> None:
    site = detect_site(os.environ)
    answer = run_probe(*mpirun(4, hello_command()), seconds=PATIENCE)
    words = parse_greetings(answer.out)
    assert answer.status == 0, answer.err
    assert [(word.rank, word.size) for word in words] == [(rank, 4) for rank in range(4)]
    assert site.libmpi is not None
    assert {Path(str(word.library)).resolve() for word in words} == {Path(site.libmpi).resolve()}


def test_a_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun(subprocess.Popen[str]):
        """Its time begins when it says so."""

        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            until((tmp_path / "begun").exists)
            return super().communicate(input, timeout)

    monkeypatch.setattr(subprocess, "Popen", Begun)
    monkeypatch.setattr(mpi_library, "_GRACE", PATIENCE)
    answer = run_probe(("/bin/sh", "-c", f"echo here; touch {tmp_path}/begun; exec sleep 600"), os.environ, 0.1)
    assert answer.status is None
    assert "here" in answer.out
    (tmp_path / "begun").unlink()
    monkeypatch.setattr(mpi_library, "_GRACE", 0.1)
    stubborn = f"trap '' TERM; touch {tmp_path}/begun; while :; do sleep 1; done"
    assert run_probe(("/bin/sh", "-c", stubborn), os.environ, 0.1).status is None
    assert run_probe(("/nowhere/mpirun",), os.environ, 1).status == 127


def test_the_loaded_library_is_read_off_the_maps() -> None:
    line = "7f00-7f01 r-xp 00000000 fe:00 9  /usr/lib/x86_64-linux-gnu/{}\n"
    assert loaded_library(line.format("libc.so.6")) is None
    assert loaded_library(line.format("libc.so.6") + line.format("libmpi.so.40.30.4")) == (
        "/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4"
    )
    spaces = "/home/a user/dlio bench/.venv/lib/libmpi.so.40"
    assert loaded_library(f"7f00-7f01 r-xp 00000000 fe:00 9                {spaces}\n") == spaces
    assert loaded_library(line.format("libmpich.so.12")) is not None
    assert loaded_library(line.format("libmpi_gnu_91.so.12")) is not None
