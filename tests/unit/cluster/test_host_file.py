"""Files that name hosts: Open MPI's and MPICH's lines; what is no host is refused by line."""

from pathlib import Path

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import allocation, launch_site, launchers
from dlio_bench.harness.cluster.allocation import NamedHost, read_host_file
from dlio_bench.harness.cluster.start import carried_variables, launch_env


def test_lines_of_both_families_name_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "# ours\nnode1 slots=4  # large\n\nnode2:2\n10.0.0.7\nnode1\nlogin-1.site.example slots=1 max_slots=9\n"
    )
    assert read_host_file(file) == (
        NamedHost("node1", 5), NamedHost("node2", 2), NamedHost("10.0.0.7", None), NamedHost("login-1.site.example", 1)
    )  # fmt: skip


@pytest.mark.parametrize("line", ["node 2", "node2 slots=0", "node2:two", "node2 slot=4", "-oProxyCommand=x", "a;b"])
def test_a_line_that_names_no_host_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"node1\n{line}\n")
    with pytest.raises(UsageError, match=f"{file}', line 2: '{line}' names no host"):
        read_host_file(file)


def test_a_file_without_hosts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_host_file(tmp_path / "none")
    (tmp_path / "hosts").write_text("# nobody\n")
    with pytest.raises(UsageError, match="names no host"):
        read_host_file(tmp_path / "hosts")


def test_a_file_of_hosts_is_an_allocation_for_mpirun(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("node1 slots=2\nnode2 slots=2\n")
    env = {"DLIO_BENCH_HOSTFILE": str(file), "SLURM_JOB_ID": "7"}
    assert allocation.find(env) == allocation.Allocation("hostfile", 2, 2)
    site = launch_site.LaunchSite(mpirun="/m/mpirun", mpi_flavor="openmpi", cores=2, programs={"srun": "/s/srun"})
    job = launchers.LaunchRequest(2, 3, ("command",), named_hosts=("node1", "node2"), carried=("PATH",))
    assert launchers.choose(env, job, site) == "mpirun"
    with pytest.raises(UsageError, match="names hosts for mpirun, but the launcher is 'srun'"):
        launchers.choose(env, job, site, "srun")
    openmpi = " ".join(launchers.LAUNCHERS["mpirun"](job, site))
    assert "--map-by ppr:3:node:OVERSUBSCRIBE" in openmpi
    assert "--host node1:2,node2:2 -x PATH" in openmpi
    hydra = launchers.LAUNCHERS["mpirun"](job, launch_site.LaunchSite(mpirun="/m/mpirun", mpi_flavor="mpich"))
    assert hydra[1:3] == ("-hosts", "node1,node2")


def test_ranks_on_other_hosts_get_what_a_shell_there_would_not_have() -> None:
    env = {
        "PATH": "/p",
        "PYTHONPATH": "/q",
        "DLIO_BENCH_CACHE": "/c",
        "OMP_NUM_THREADS": "1",
        "HOME": "/h",
        "TMPDIR": "/t",
    }
    assert carried_variables(env) == ("DLIO_BENCH_CACHE", "OMP_NUM_THREADS", "PATH", "PYTHONPATH")


def test_credentials_of_an_object_store_reach_other_hosts_by_name_alone() -> None:
    names = carried_variables(
        {"AWS_SECRET_ACCESS_KEY": "hidden", "https_proxy": "http://hidden@p", "SSL_CERT_FILE": "c"}
    )
    assert names == ("AWS_SECRET_ACCESS_KEY", "SSL_CERT_FILE", "https_proxy")
    site = launch_site.LaunchSite(mpirun="/m/mpirun", mpi_flavor="openmpi", cores=2)
    job = launchers.LaunchRequest(2, 3, ("command",), named_hosts=("a", "b"), carried=names)
    argv = launchers.LAUNCHERS["mpirun"](job, site)
    assert "AWS_SECRET_ACCESS_KEY" in argv
    assert not any("hidden" in word for word in argv)


def test_an_interface_goes_to_ranks_and_to_mpi_on_several_hosts() -> None:
    site = launch_site.LaunchSite(mpirun="/m/mpirun", mpi_flavor="openmpi", cores=2)
    env = {"DLIO_BENCH_INTERFACE": "eth1", "PRTE_MCA_prte_if_include": "eth0"}
    several = launch_env(launchers.LaunchRequest(2, 1, ("command",)), site, env)
    assert several == {"DLIO_BENCH_INTERFACE": "eth1", "OMPI_MCA_btl_tcp_if_include": "eth1"}
    assert "DLIO_BENCH_INTERFACE" not in launch_env(
        launchers.LaunchRequest(2, 1, ("command",), virtual=True), site, env
    )
