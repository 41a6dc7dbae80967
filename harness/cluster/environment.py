"""The description of a machine in results: enough to explain a number and to tell two machines apart, no secrets."""

import hashlib
import math
import os
import platform
import re
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dlio_bench import __version__
from dlio_bench.harness.cluster.mpi_library import SESSION_FOLDER, loaded_library, run_probe
from dlio_bench.harness.machine.memory import cpu_quota, memory
from dlio_bench.harness.machine.mounts import client_version, existing, first_line, mount_of
from dlio_bench.reports.document.environment import Host, Mount
from dlio_bench.units import format_bytes

SYS = Path("/sys")
SECTOR = 512  # bytes: the unit of /sys/block/*/size, whatever the drive's own (Linux, Documentation/ABI/stable)

_ROOMS = ("benchmarks", "datagen", "harness", "reports")
_BESIDE = ("numpy", "h5py", "mpi4py")


def _folders(package: str) -> list[Path]:
    spec = find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def sources() -> Iterator[tuple[str, Path]]:
    """(name, file) of every .py file of the installed package, sorted by name; names start below `dlio_bench`.

    The same names come out of an installed wheel and of an editable install, whose packages lie in folders of their own
    and whose root package lies inside another's (harness/root).
    """
    roots = _folders("dlio_bench")
    files = {file.name: file for folder in roots for file in folder.glob("*.py")}
    for room in _ROOMS:
        for folder in _folders(f"dlio_bench.{room}"):
            for file in folder.rglob("*.py"):
                if not any(file.is_relative_to(root) for root in roots if root != folder.parent):
                    files[f"{room}/{file.relative_to(folder).as_posix()}"] = file
    yield from sorted(files.items())


def digest_of(files: Iterator[tuple[str, Path]], versions: dict[str, str | None]) -> str:
    """SHA-256 (hexadecimal) over names and bytes, each with its length before it, and over the versions."""
    total = hashlib.sha256()
    for name, file in files:
        body = file.read_bytes()
        total.update(f"{len(name)} {name} {len(body)} ".encode())
        total.update(body)
    total.update(repr(sorted(versions.items())).encode())
    return total.hexdigest()


def installed_version(package: str) -> str | None:
    """The installed version of a distribution, None where there is none. Imports nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def code_place() -> str:
    """The same for two processes of a host whose code is the same files: interpreter, path, folders of packages."""
    rooms = ("dlio_bench", *(f"dlio_bench.{room}" for room in _ROOMS))
    folders = [folder.stat() for name in rooms for folder in _folders(name)]
    return repr((sys.executable, sys.path, [(folder.st_dev, folder.st_ino) for folder in folders]))


@cache
def code_digest() -> str:
    """One name for this rank's code: all .py files of dlio_bench and the versions of NumPy, h5py and mpi4py."""
    return digest_of(sources(), {package: installed_version(package) for package in _BESIDE})


PACKAGES = ("dlio-bench", "numpy", "h5py", "mpi4py", "crc32c", "isal", "tensorflow", "tensorflow-cpu", "horovod")

# Variables that change what a run does. Everything else stays out of the results: environments hold secrets.
_KEPT = frozenset(
    {
        "HDF5_USE_FILE_LOCKING",
        "OMP_NUM_THREADS",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHASHSEED",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "MPI4PY_LIBMPI",
        "MPI4PY_MPIABI",
        "SLURM_JOB_ID",
        "SLURM_JOB_NUM_NODES",
        "SLURM_JOB_PARTITION",
        "SLURM_CPUS_PER_TASK",
        "SLURM_MPI_TYPE",
        "PBS_JOBID",
        "LSB_JOBID",
        "FLUX_JOB_ID",
        "CUDA_VISIBLE_DEVICES",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_ENABLE_ONEDNN_OPTS",
    }
)
_KEPT_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "I_MPI_", "MPICH_", "UCX_", "FI_", "HOROVOD_")
# Set by Open MPI's mpirun for its ranks, not by the user
_OF_MPIRUN = frozenset({"OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs"})
_SECRET = re.compile(r"SECRET|TOKEN|PASS|KEY|CRED")


def recorded_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that go into results, by name: a list of allowed ones, and never one named as a secret.

    Folders that were made for this one job are no setting of the user's.
    """
    return {
        name: value
        for name, value in sorted(env.items())
        if (name in _KEPT or name.startswith(_KEPT_PREFIXES))
        and name not in _OF_MPIRUN
        and SESSION_FOLDER not in value
        and not _SECRET.search(name)
    }


def timestamp() -> str:
    """Now, in UTC, as results give it: 2026-01-31T12:00:00+00:00."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def provenance() -> dict[str, Any]:
    """When, by which version and by which command a result is made, as its document says it."""
    return {"created": timestamp(), "version": __version__, "command": ["dlio-bench", *sys.argv[1:]]}


def host_name() -> str:
    """This machine's name, as results and messages give it."""
    return platform.node()


def usable_cores(cpus: Collection[int] | None = None) -> int:
    """How many of `cpus` can be used: all, or the control group's quota (rounded up) if that is less.

    cpus: processors by number; None: those of this process's affinity mask.
    """
    cores = len(os.sched_getaffinity(0) if cpus is None else cpus)
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def resident_bytes() -> int:
    """Physical memory that this process holds now, in bytes (statm's second field is in pages, proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def physical_cores(cpus: Collection[int] | None = None) -> int:
    """Cores of `cpus`, as for usable_cores, hardware threads of one core counted once; at least 1."""
    seen = set()
    for cpu in os.sched_getaffinity(0) if cpus is None else cpus:
        siblings = _read_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        seen.add(siblings or str(cpu))
    return max(1, len(seen))


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def parse_cpu_model(cpuinfo: str) -> str | None:
    """The processor's name in a /proc/cpuinfo: x86 calls it `model name`, POWER `cpu`; Arm may have none."""
    match = re.search(r"^(?:model name|cpu|Processor)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def cpu_model() -> str:
    """The processor's name, or that of its architecture."""
    return parse_cpu_model(_read_text("/proc/cpuinfo") or "") or platform.machine()


def parse_stripe(text: str) -> dict[str, str]:
    """`name: value` pairs of `lfs getstripe -d` (lfs-getstripe(1)): on one line, or on a line each; the first wins."""
    stripe: dict[str, str] = {}
    for name, value in re.findall(r"(?:lmm_|lcme_)?(stripe_\w+|pattern|pool|layout_gen|mirror_count):\s+(\S+)", text):
        stripe.setdefault(name, value)
    return stripe


def stripe_layout(path: Path, filesystem: str | None) -> dict[str, str] | None:
    """The Lustre layout of a file or folder; None on other file systems, without `lfs`, or when it takes over 5 s."""
    lfs = shutil.which("lfs") if filesystem == "lustre" else None
    answer = run_probe((lfs, "getstripe", "-d", str(path)), os.environ, seconds=5) if lfs else None
    return parse_stripe(answer.out) or None if answer and answer.status == 0 else None


def network_links(system: Path = SYS) -> list[str]:
    """The links that are up, with their rates where the driver tells them: 'eth0 10 Gbit/s', 'mlx5_0 200 Gb/sec ...'.

    Virtual links, such as bridges, are left out, and so are those of Ethernet that InfiniBand's devices carry.
    """
    found = [
        f"{port.parent.parent.name} {first_line(port / 'rate')}".strip()
        for port in sorted(system.glob("class/infiniband/*/ports/*"))
        if "ACTIVE" in first_line(port / "state")
    ]
    for link in sorted(system.glob("class/net/*")):
        if not (link / "device").exists() or first_line(link / "operstate") == "down":
            continue
        if (link / "device" / "infiniband").exists() and found:
            continue
        rate = first_line(link / "speed")  # Mbit/s, -1 where it is not known
        found.append(f"{link.name} {int(rate) / 1000:g} Gbit/s" if rate.isdigit() and int(rate) else link.name)
    return found


def describe_drives(system: Path = SYS) -> list[str]:
    """The drives, like ones counted: '8 x SAMSUNG MZQL23T8, 3.84 TB', or by name where they tell no model."""
    found: Counter[str] = Counter()
    for drive in sorted(system.glob("block/*")):
        size = first_line(drive / "size")
        if (drive / "device").exists() and size.isdigit() and int(size):
            model = first_line(drive / "device" / "model") or drive.name
            found[f"{model}, {format_bytes(int(size) * SECTOR)}"] += 1
    return [name if count == 1 else f"{count} x {name}" for name, count in found.items()]


def mount_at(path: Path) -> Mount | None:
    """The file system of a path, or of its nearest folder that exists, as results give it."""
    mount = mount_of(existing(path))
    return Mount(mount.point, mount.type, mount.source, list(mount.options)) if mount else None


def describe_host(path: Path, cpus: Collection[int] | None = None) -> Host:
    """This machine, with the file system of `path` (or of its nearest folder that exists).

    cpus: the processors of the job, as for usable_cores. Imports no package; takes some 10 ms.
    """
    mount = mount_at(path)
    room = memory()
    return Host(
        host=host_name(),
        cpu=cpu_model(),
        cores=usable_cores(cpus),
        cpu_quota=cpu_quota(),
        cores_physical=physical_cores(cpus),
        governor=_read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=room.total,
        memory_limit_bytes=room.limit,
        kernel=platform.release(),
        python=platform.python_version(),
        packages={name: version for name in PACKAGES if (version := installed_version(name))},
        libmpi=loaded_library(),
        mount=mount,
        client=client_version(mount.type) if mount else None,
        network=network_links(),
        drives=describe_drives(),
        stripe=stripe_layout(existing(path), mount.type if mount else None),
        variables=recorded_variables(os.environ),
    )
