"""Launchers: pure functions from a job, and what is known of the machine, to the argv that starts its ranks.

The caller starts the argv in the environment `os.environ | job.env`; the argv names those variables again wherever a
launcher does not carry its own environment to other nodes.

No launcher binds ranks to cores of its own accord: a rank is a trainer and its reader threads, and a rank bound to one
core (Open MPI's and Slurm's default) would read with that core alone. A binding that the site or the user has chosen,
by a variable or in --launcher-args, stays.

Launchers lead each line that a rank prints by its number, where they can: see RankLog in outcome.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from dlio_bench.errors import EnvironmentFailure, UsageError, unknown
from dlio_bench.harness.cluster.launch_site import LaunchSite
from dlio_bench.harness.cluster.variables import HOSTFILE, LAUNCHER_ARGS


class LaunchRequest(Struct, frozen=True):
    """What to start: `ranks_per_node` copies of `command` on each of `nodes` nodes.

    `virtual`: the nodes are played by ranks of this machine, all started on one host. `env`: variables that every rank
    must see; `carried`: names of those of this process that other hosts must see too. `named_hosts`: where the ranks
    shall run, for mpirun; empty: the scheduler knows.
    """

    nodes: int
    ranks_per_node: int
    command: tuple[str, ...]
    virtual: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    named_hosts: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.ranks_per_node

    @property
    def hosts(self) -> int:
        """Machines it runs on: virtual nodes share one."""
        return 1 if self.virtual else self.nodes

    @property
    def ranks_per_host(self) -> int:
        """Ranks on each machine."""
        return self.ranks // self.hosts


Launcher = Callable[[LaunchRequest, LaunchSite], tuple[str, ...]]


def _local(job: LaunchRequest, site: LaunchSite) -> tuple[str, ...]:
    """One rank without MPI, in a process of its own: the command can end it while storage does not answer."""
    if job.ranks != 1:
        raise UsageError(
            f"The launcher 'local' starts one rank without MPI, but {job.ranks} are asked for "
            f"({job.nodes} nodes x {job.ranks_per_node}). Ask for one, or use the launcher 'mpirun'."
        )
    if site.arguments:
        raise UsageError(
            f"The launcher 'local' takes no options, but --launcher-args (or {LAUNCHER_ARGS}) is "
            f"'{shlex.join(site.arguments)}'. Leave it out, or choose another with --launcher."
        )
    return job.command


def _mpirun(job: LaunchRequest, site: LaunchSite) -> tuple[str, ...]:
    """The mpirun of an MPI library, in its family's own words."""
    program = site.mpirun or "mpirun"
    if site.mpi_flavor == "openmpi":
        return (program, *_openmpi_options(job, site), *site.arguments, *job.command)
    if site.mpi_flavor in ("mpich", "intel"):
        return (program, *_hydra_options(job, site), *site.arguments, *job.command)
    return (
        program,
        "-n",
        str(job.ranks),
        *site.arguments,
        *job.command,
    )  # all that the MPI standard promises of mpiexec


def _openmpi_options(job: LaunchRequest, site: LaunchSite) -> list[str]:
    """mpirun(1), Open MPI 5.0 (docs.open-mpi.org/en/v5.0.x/man-openmpi/man1/mpirun.1.html); tried with 4.1.4 too."""
    # "ppr:R:node" fills the first node with R ranks before the next: it also keeps virtual nodes on one machine inside
    # a larger allocation. Open MPI refuses more ranks than cores unless told that it is meant.
    shared = ":OVERSUBSCRIBE" if job.ranks_per_host > site.cores else ""
    return [
        *(["--allow-run-as-root"] if site.root else []),  # containers; refused otherwise
        *site.unless_given("--map-by", f"ppr:{job.ranks_per_host}:node{shared}", also=("--rank-by", "--ppr")),
        *(() if "mpirun" in site.bound else site.unless_given("--bind-to", "none", also=("--cpu-set", "--cpu-list"))),
        # as many slots as cores here: a host with fewer cores still gets its ranks
        *_list_option("--host", [f"{host}:{min(job.ranks_per_host, site.cores)}" for host in job.named_hosts]),
        *_tag_options(site),
        *(word for name in sorted({*job.env, *job.carried}) for word in ("-x", name)),
        *("-n", str(job.ranks)),
    ]


def _tag_options(site: LaunchSite) -> tuple[str, ...]:
    """Lines led by the rank: a word of its own in Open MPI 4 and before, which 5 does not know."""
    major = (site.mpi_version or "").partition(".")[0]
    if not major.isdigit():
        return ()
    return site.unless_given("--output", "tag") if int(major) >= 5 else site.unless_given("--tag-output")


def _hydra_options(job: LaunchRequest, site: LaunchSite) -> list[str]:
    """mpiexec of Hydra (MPICH's mpiexec(1), mvapich-docs "Using the Hydra process manager", Intel MPI's reference).

    Hydra neither refuses root nor counts cores, does not bind unless asked, and carries the whole environment.
    """
    return [
        *_list_option("-hosts", job.named_hosts),
        *("-n", str(job.ranks)),
        *site.unless_given("-ppn", str(job.ranks_per_host), also=("-perhost",)),
        *site.unless_given("-prepend-rank", also=("-l",)),
        *(word for name, value in sorted(job.env.items()) for word in ("-genv", name, value)),
    ]


def _list_option(option: str, words: Sequence[str]) -> tuple[str, ...]:
    return (option, ",".join(words)) if words else ()


def _srun(job: LaunchRequest, site: LaunchSite) -> tuple[str, ...]:
    """srun(1) (slurm.schedmd.com/srun.html, mpi_guide.html).

    A wrong --mpi does not fail: it starts as many worlds of one rank. So it is always named (a site's own choice in
    SLURM_MPI_TYPE comes first), and the ranks must compare their world's size with what was asked. --export=ALL because
    a job script may have been submitted with another --export, which job steps inherit.

    EnvironmentFailure where this Slurm has no plug-in for the MPI library.
    """
    return (
        site.programs.get("srun", "srun"),
        *site.unless_given(f"--mpi={site.mpi_type or _slurm_plugin(job, site)}"),
        "--kill-on-bad-exit=1",
        *site.unless_given("--export=ALL"),
        *(() if "srun" in site.bound else site.unless_given("--cpu-bind=none")),
        "--label",
        *(["--overcommit"] if job.ranks_per_host > site.cores else []),
        *("-N", str(job.hosts), "-n", str(job.ranks), "--ntasks-per-node", str(job.ranks_per_host)),
        *site.arguments,
        *job.command,
    )


def _slurm_plugin(job: LaunchRequest, site: LaunchSite) -> str:
    """The plug-in that connects ranks of the site's MPI library. EnvironmentFailure where several ranks have none.

    `srun --mpi=list` names `pmix` beside its versions; a Slurm may have a version alone.
    """
    wanted, *others = ("pmi2", "pmix", "cray_shasta") if site.mpi_flavor in ("mpich", "intel") else ("pmix",)
    for name in (wanted, *others):
        if not site.plugins or name in site.plugins:
            return name
    versions = sorted(
        (plugin for plugin in site.plugins if plugin.startswith("pmix_v")), key=lambda text: (len(text), text)
    )
    if versions or job.ranks == 1:
        return versions[-1] if versions else "none"
    library = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}.get(site.mpi_flavor or "", "MPI")
    raise EnvironmentFailure(
        f"srun cannot connect the ranks of {library}, which needs its plug-in {wanted}: `srun --mpi=list` has "
        f"{', '.join(site.plugins)}. Use --launcher mpirun, have the site add the plug-in, or name another one with "
        "SLURM_MPI_TYPE if your MPI library speaks it."
    )


def _jsrun(job: LaunchRequest, site: LaunchSite) -> tuple[str, ...]:
    """jsrun(1) (OLCF Summit User Guide, "Running jobs"): one resource set a node, with all of its cores and GPUs."""
    return (
        site.programs.get("jsrun", "jsrun"),
        *("--nrs", str(job.hosts), "--rs_per_host", "1", "--tasks_per_rs", str(job.ranks_per_host)),
        *("--cpu_per_rs", "ALL_CPUS", "--gpu_per_rs", "ALL_GPUS"),
        *site.unless_given("--bind", "none", also=("-b",)),
        *(word for name, value in sorted(job.env.items()) for word in ("-E", f"{name}={value}")),
        *site.arguments,
        *job.command,
    )


def _flux(job: LaunchRequest, site: LaunchSite) -> tuple[str, ...]:
    """flux-run(1) and flux-shell(1) (flux-framework.readthedocs.io): whole nodes, R tasks on each.

    "--tasks-per-node" and not "--ntasks", which would ask for a core each. In --env values "$" begins a substitution.
    """
    return (
        *(site.programs.get("flux", "flux"), "run"),
        *("-N", str(job.hosts), f"--tasks-per-node={job.ranks_per_host}", "--exclusive", "--label-io"),
        *(() if any("cpu-affinity" in word for word in site.arguments) else ("-o", "cpu-affinity=off")),
        *(f"--env={name}={value.replace('$', '$$')}" for name, value in sorted(job.env.items())),
        *site.arguments,
        *job.command,
    )


def _pals(job: LaunchRequest, site: LaunchSite) -> tuple[str, ...]:
    """mpiexec(1) of HPE PALS (docs.alcf.anl.gov, "Running jobs": Polaris, Aurora)."""
    return (
        site.programs.get("pals", "mpiexec"),
        *("-n", str(job.ranks), "--ppn", str(job.ranks_per_host)),
        *site.unless_given("--cpu-bind", "none"),
        "--envall",
        *(word for name, value in sorted(job.env.items()) for word in ("--env", f"{name}={value}")),
        *site.arguments,
        *job.command,
    )


def _attach_ranks(job: LaunchRequest, site: LaunchSite) -> tuple[str, ...]:
    """Ranks that somebody else has started: the relay asks them to run the job (see joined)."""
    if site.started is None:
        raise UsageError(
            "--launcher none: no ranks were started. Start them with the command, as in mpirun -n 8 dlio-bench run ..."
        )
    if site.started != (job.nodes, job.ranks_per_node):
        raise UsageError(
            f"--launcher none: {site.started[0]}x{site.started[1]} ranks were started (nodes x ranks on each), but "
            f"{job.nodes}x{job.ranks_per_node} are asked for. Start as many as the command asks "
            "for (calibrate: one on each node), or leave its numbers of nodes and ranks out."
        )
    if site.arguments:
        raise UsageError("--launcher-args: --launcher none starts nothing. Give them to what starts the ranks.")
    return (sys.executable, "-P", "-m", "dlio_bench.harness.cluster.joined", *job.command[-2:])


LAUNCHERS: dict[str, Launcher] = {
    "local": _local,
    "mpirun": _mpirun,
    "srun": _srun,
    "jsrun": _jsrun,
    "flux": _flux,
    "pals": _pals,
    "none": _attach_ranks,
}

_FIXES: dict[str, str] = {
    "mpirun": "Install one with `pip install 'dlio-bench[mpi]'` or `apt-get install openmpi-bin`, or load the site's "
    "MPI module",
    "srun": "Run where Slurm's commands are on the PATH, or use --launcher mpirun",
    "jsrun": "Run on a node with IBM's job step manager on the PATH, or use --launcher mpirun",
    "flux": "Put Flux's command on the PATH, or use --launcher mpirun",
    "pals": "Load the module that brings PALS (mpiexec and palstat), or use --launcher mpirun",
}


def choose(env: Mapping[str, str], job: LaunchRequest, site: LaunchSite, requested: str | None = None) -> str:
    """The launcher's name in LAUNCHERS: the `requested` one, else the one of the scheduler whose job we are in.

    Flux is looked at first, as it also runs inside other schedulers' allocations. LSF without jsrun and PBS without
    PALS are served by mpirun, which knows their host lists; without a scheduler one rank is `local`.

    Raises UsageError for an unknown name, EnvironmentFailure where the launcher's program is missing.
    """
    if requested is not None and requested not in LAUNCHERS:
        raise unknown("launcher", requested, list(LAUNCHERS))
    if site.started is not None and requested not in (None, "none"):
        raise UsageError(f"--launcher {requested}: this command's ranks were started already. Use --launcher none.")
    if env.get(HOSTFILE):
        if requested not in (None, "mpirun"):
            raise UsageError(
                f"--hostfile (or {HOSTFILE}) names hosts for mpirun, but the launcher is '{requested}', which gets its "
                "hosts from a scheduler. Leave one of them out."
            )
        requested = "mpirun"
    name = (
        requested or _scheduler_launcher(env, site) or ("local" if job.ranks == 1 and not site.arguments else "mpirun")
    )
    here = {"local", "none", *site.programs, *(["mpirun"] if site.mpirun else [])}
    if name not in here:
        why = "as asked" if requested else f"chosen for {job.ranks} ranks on {job.nodes} nodes in this environment"
        raise EnvironmentFailure(f"The launcher '{name}' ({why}) is not on this machine. {_FIXES[name]}.")
    return name


def _scheduler_launcher(env: Mapping[str, str], site: LaunchSite) -> str | None:
    if site.started is not None:
        return "none"
    if "FLUX_URI" in env or "FLUX_JOB_ID" in env:
        return "flux"
    if "SLURM_JOB_ID" in env:
        return "srun"
    if "LSB_JOBID" in env:
        return "jsrun" if "jsrun" in site.programs else "mpirun"
    if "PBS_JOBID" in env:
        return "pals" if "pals" in site.programs else "mpirun"
    return None
