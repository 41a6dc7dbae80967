"""The nodes that a scheduler, or a host file, has given to this command."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.mpi_library import run_probe
from dlio_bench.harness.cluster.variables import HOSTFILE, STARTED
from dlio_bench.reports.view.formatting import plural

# Files that name hosts, outside of a scheduler: `node1`, `node1 slots=4` (Open MPI) or `node1:4` (MPICH) on a line.

# A name or an IPv4 address; the slots, if they are given. Open MPI's max_slots limits what we never ask for.
_LINE = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\s*:\s*(\d+))?(?:\s+slots\s*=\s*(\d+))?(?:\s+max[_-]slots\s*=\s*\d+)?")


class NamedHost(Struct, frozen=True):
    """A host, and how many ranks it is for; None: the file does not say."""

    name: str
    slots: int | None


def read_host_file(file: Path) -> tuple[NamedHost, ...]:
    """The hosts in the order of their first lines; a host on several lines has all of their slots. UsageError."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"The host file '{file}' cannot be read: {why}. Give a file with a host on each line."
        ) from error
    slots: dict[str, int | None] = {}
    for number, line in enumerate(lines, 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        given = None if match is None else match[2] or match[3]
        if match is None or (given is not None and int(given) < 1) or (match[2] and match[3]):
            raise UsageError(
                f"The host file '{file}', line {number}: '{content}' names no host. Write a host on each line, and how "
                "many ranks it is for if it matters: 'node1', 'node1 slots=4' or 'node1:4'."
            )
        name = match[1]
        if name in slots:
            slots[name] = (slots[name] or 1) + int(given or 1)
        else:
            slots[name] = None if given is None else int(given)
    if not slots:
        raise UsageError(f"The host file '{file}' names no host. Write one on each line, such as 'node1 slots=4'.")
    return tuple(NamedHost(name, count) for name, count in slots.items())


def hosts_in_file(env: Mapping[str, str]) -> tuple[NamedHost, ...]:
    """The hosts of the file that `--hostfile` or its variable names; none without one. UsageError."""
    file = env.get(HOSTFILE)
    return read_host_file(Path(file)) if file else ()


GIVERS = {"slurm": "Slurm", "flux": "Flux", "lsf": "LSF", "pbs": "PBS"}

TO_COME = "0"  # number of the job that `sbatch` plans for: Slurm counts from 1


class Allocation(Struct, frozen=True):
    """What was given. None: whoever gave it does not say.

    `giver` is slurm, flux, lsf, pbs, hostfile or launched (ranks that are there already); `job` is the scheduler's
    number of the job. `ranks_per_node` are the tasks that its user asked for on each node; `unequal` tells them where
    nodes differ.
    """

    giver: str
    nodes: int
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    job: str | None = None
    unequal: str | None = None

    def __str__(self) -> str:
        """For people: the Slurm allocation 123."""
        if self.giver == "launched":
            return "the ranks that were launched"
        if self.giver == "hostfile":
            return "the host file"
        return f"the {GIVERS.get(self.giver, self.giver)} allocation{f' {self.job}' if self.job else ''}"


class Scale(Struct, frozen=True):
    """Nodes, and ranks on each. `origin` says, for people, whence those come that nobody asked for; it may be empty."""

    nodes: int
    ranks_per_node: int
    origin: str = ""


def default_scale(
    given: Allocation | None, *, nodes: bool = False, ranks_per_node: bool = False, otherwise: int = 1
) -> Scale:
    """The scale of a command whose user named neither nodes nor ranks per node; True: the user named those.

    The nodes are all of the allocation. The ranks of a node are its tasks, else its GPUs, else `otherwise`.
    UsageError where nodes have unequal tasks.
    """
    if given is None:
        return Scale(1, 1)
    if given.unequal is not None and not ranks_per_node:
        raise UsageError(
            f"{given} has {given.unequal} tasks on its nodes, and every node gets as many ranks. Say how many with "
            "--ranks-per-node R."
        )
    ranks = given.ranks_per_node or given.gpus_per_node or otherwise
    parts = [] if nodes else [plural(given.nodes, "node")]
    if not ranks_per_node and (given.ranks_per_node or given.gpus_per_node):
        parts.append(f"{plural(ranks, 'task' if given.ranks_per_node else 'GPU')} per node")
    return Scale(given.nodes, ranks, f"{' and '.join(parts)} of {given}" if parts else "")


def find(env: Mapping[str, str]) -> Allocation | None:
    """The allocation that this process is in; None outside of one, or where its nodes cannot be told.

    A file of hosts that the user names comes before a scheduler's. UsageError if it is not one.
    """
    if STARTED in env:
        count, each, _ = env[STARTED].split(" ", 2)
        return Allocation("launched", int(count), int(each))
    if named := hosts_in_file(env):
        slots = [host.slots for host in named if host.slots is not None]
        return _with_tasks(Allocation("hostfile", len(named)), slots if len(slots) == len(named) else [])
    giver, nodes = _nodes(env)
    if nodes is None:
        return None
    if giver == "slurm":
        return _slurm(env, nodes)
    job = env.get({"lsf": "LSB_JOBID", "pbs": "PBS_JOBID", "flux": "FLUX_JOB_ID"}[giver])
    tasks = [] if giver == "flux" else _tasks_in_files(env)
    return _with_tasks(Allocation(giver, nodes, job=job), tasks)


def require(given: Allocation | None, nodes: int) -> None:
    """UsageError if more nodes are asked for than were given. Of a job to come, any number may be asked for."""
    if given is not None and nodes > given.nodes and given.job != TO_COME:
        raise UsageError(
            f"--nodes {nodes} is more than the {plural(given.nodes, 'node')} of {given}. Ask for at most {given.nodes}."
        )


def are_virtual(nodes: int) -> bool:
    """Whether this machine plays so many nodes. UsageError if more are asked for than an allocation has."""
    given = find(os.environ)
    require(given, nodes)
    return nodes > 1 and given is None


def nodes(env: Mapping[str, str] | None = None) -> int | None:
    """Nodes of the allocation; None outside of one. env: this process's environment, if not given."""
    given = find(os.environ if env is None else env)
    return None if given is None else given.nodes


def _slurm(env: Mapping[str, str], nodes: int) -> Allocation:
    """Tasks and GPUs of a Slurm job (salloc(1), sbatch(1), "Output environment variables").

    SLURM_TASKS_PER_NODE is the number of processors where no tasks were asked for: then SLURM_NTASKS is missing.
    """
    tasks: list[int] = []
    if (each := env.get("SLURM_NTASKS_PER_NODE", "")).isdigit():
        tasks = [int(each)]
    elif (total := env.get("SLURM_NTASKS", "")).isdigit():
        tasks = counts_by_node(env.get("SLURM_TASKS_PER_NODE", ""))
        if sum(tasks) != int(total):  # of a step in the job, say
            tasks = [int(total) // nodes] if int(total) % nodes == 0 else []
    gpus = env.get("SLURM_GPUS_ON_NODE") or env.get("SLURM_GPUS_PER_NODE", "")
    counted = re.findall(r"(\d+)(?:,|$)", gpus)  # "4", "a100:4", "a100:2,v100:2"
    made = Allocation("slurm", nodes, gpus_per_node=sum(map(int, counted)) or None, job=env.get("SLURM_JOB_ID"))
    return _with_tasks(made, tasks)


def counts_by_node(text: str) -> list[int]:
    """Slurm's list of numbers by node: "2(x3),1" -> [2, 2, 2, 1]; empty where it is none."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return []
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers


def _with_tasks(given: Allocation, tasks: Sequence[int]) -> Allocation:
    if len(set(tasks)) > 1:
        shown = sorted(set(tasks), reverse=True)
        return replace(given, unequal=", ".join(map(str, shown[:-1])) + f" or {shown[-1]}")
    return replace(given, ranks_per_node=tasks[0]) if tasks and tasks[0] else given


def _tasks_in_files(env: Mapping[str, str]) -> list[int]:
    """How often a PBS or LSF host file names each host: its MPI ranks (PBS: mpiprocs), or its slots (LSF's tasks).

    Empty where there is a launch node: the slots are cores then, whatever is started on them.
    """
    hosts = _host_lines(env.get("LSB_DJOB_HOSTFILE") or env.get("PBS_NODEFILE"))
    counts = Counter(hosts)
    has_launch_node = "LSB_DJOB_HOSTFILE" in env and len(counts) > 1 and counts[hosts[0]] == 1 < max(counts.values())
    return [] if has_launch_node else list(counts.values())


def _nodes(env: Mapping[str, str]) -> tuple[str, int | None]:
    """Flux: its broker's size, asked of `flux`. Slurm: SLURM_JOB_NUM_NODES. LSF, PBS: names in their host files.

    Under LSF with a launch node (Summit) that node comes first, once, and runs no ranks.
    """
    if "FLUX_URI" in env:
        answer = run_probe(("flux", "getattr", "size"), env, seconds=5)
        return "flux", int(answer.out) if answer.status == 0 and answer.out.strip().isdigit() else None
    if (count := env.get("SLURM_JOB_NUM_NODES", "")).isdigit():
        return "slurm", int(count)
    giver = "lsf" if "LSB_DJOB_HOSTFILE" in env else "pbs"
    hosts = _host_lines(env.get("LSB_DJOB_HOSTFILE") or env.get("PBS_NODEFILE"))
    names = set(hosts)
    if giver == "lsf" and len(hosts) > len(names) and hosts.count(hosts[0]) == 1:
        names.discard(hosts[0])
    return giver, len(names) or None


def _host_lines(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
    except OSError:
        return []
