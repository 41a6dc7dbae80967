"""The environment of ranks: what they need besides, and what other hosts must get from here."""

from collections.abc import Mapping

from dlio_bench.harness.cluster.launch_site import Site
from dlio_bench.harness.cluster.launchers import Job
from dlio_bench.harness.cluster.mpi_library import Flavor, pairing_env
from dlio_bench.harness.cluster.variables import INTERFACE, MPI_PLUGINS


def single_host_env(flavor: Flavor | None, env: Mapping[str, str]) -> dict[str, str]:
    """Settings for a job on one machine: no search for a fabric, no warnings about what it lacks.

    Open MPI's import falls from 1.1 s to 0.07 s a rank. Components are ruled out rather than named, because the
    shared-memory one is `vader` in 4.x and `sm` in 5.x, and a wrong name ends the run. What the user has set stays; do
    not use it across machines, where it would force TCP.
    """
    if flavor != "openmpi":
        return {}
    settings = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "^ofi,uct,openib",
        "OMPI_MCA_btl_base_warn_component_unused": "0",
        "OMPI_MCA_opal_warn_on_missing_libcuda": "0",
    }
    return {name: value for name, value in settings.items() if name not in env}


# What a shell on another host, started by ssh, would not have.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")  # on the way to an object store
_CARRIED = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {*_PROXIES, *map(str.lower, _PROXIES)}
)
_CARRIED_PREFIXES = (
    *("DLIO_BENCH_", "PYTHON", "MPI4PY_", "HDF5_", "OMP_", "MKL_", "OPENBLAS_", "TF_", "CUDA_", "HOROVOD_", "NCCL_"),
    *("UCX_", "FI_", "AWS_"),
)


def carried(env: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables of `env` that ranks on hosts reached by ssh need. Open MPI carries its own by itself."""
    return tuple(sorted(name for name in env if name in _CARRIED or name.startswith(_CARRIED_PREFIXES)))


def _interface_env(flavor: Flavor | None, name: str, env: Mapping[str, str]) -> dict[str, str]:
    """Settings by which ranks, and their MPI library, use one network interface. What the user has set stays.

    Open MPI: its "Run-time tuning" (btl_tcp_if_include) and prterun(1); MPICH: "Using the Hydra process manager"; Intel
    MPI Library Developer Reference; fi_tcp(7).
    """
    settings = {INTERFACE: name}
    if flavor == "openmpi":
        settings |= {"OMPI_MCA_btl_tcp_if_include": name, "PRTE_MCA_prte_if_include": name}
    elif flavor in ("mpich", "intel"):
        settings |= {"HYDRA_IFACE" if flavor == "mpich" else "I_MPI_HYDRA_IFACE": name, "FI_TCP_IFACE": name}
    return {name: value for name, value in settings.items() if name == INTERFACE or name not in env}


def launch_env(job: Job, site: Site, env: Mapping[str, str]) -> dict[str, str]:
    """`job.env` and all that its ranks need besides to load the right MPI library, quickly.

    Give the result to the job (`msgspec.structs.replace(job, env=...)`) and to the launcher's process.
    """
    extra = pairing_env(site.libmpi, env)
    if site.plugins:
        extra[MPI_PLUGINS] = ", ".join(site.plugins)
    if job.hosts == 1:
        extra |= single_host_env(site.mpi_flavor, env)
    elif site.mpi_flavor == "intel" and "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT" not in env:
        # Intel MPI ignores -ppn inside a scheduler's job unless told so (Intel MPI Library Developer Reference).
        extra["I_MPI_JOB_RESPECT_PROCESS_PLACEMENT"] = "off"
    if job.hosts > 1 and (interface := env.get(INTERFACE)):
        extra |= _interface_env(site.mpi_flavor, interface, env)
    return extra | dict(job.env)
