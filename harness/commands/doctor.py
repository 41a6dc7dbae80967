"""`dlio-bench doctor`: tries what this machine has and can do, and names a fix for what is missing."""

import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.errors import BenchError
from dlio_bench.free_space import SHARED_MEMORY, free_bytes
from dlio_bench.harness.cluster import allocation, launch_site, launchers, mpi_library
from dlio_bench.harness.cluster.environment import installed_version, physical_cores, usable_cores
from dlio_bench.harness.cluster.mpi_library import Greeting
from dlio_bench.harness.cluster.start import launch_env
from dlio_bench.harness.machine import mounts
from dlio_bench.harness.machine.memory import memory
from dlio_bench.harness.storage import cache
from dlio_bench.harness.storage.pfs import emulation
from dlio_bench.harness.streams import adios
from dlio_bench.harness.training.libraries import DISTRIBUTIONS, TENSORFLOW
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrap

_PATIENCE = 20.0  # seconds for a two-rank job that should take one or two
_TRIAL_BYTES = 4 << 20
_SCRATCH_BYTES = 64 << 20  # least free space
_SHARED_BYTES = 512 << 20  # some batches of 32 samples of 16 MB, as workers hold them


class Finding(Struct, frozen=True):
    """One check. ok: True: good; False: something required is missing or broken; None: worth knowing, no harm.

    found: what there is, in a sentence. fix: what the user can do, if anything.
    """

    name: str
    ok: bool | None
    found: str
    fix: str | None = None


def exit_status(findings: list[Finding]) -> int:
    """The exit status: 4 if anything required is missing or broken, else 0."""
    return 4 if any(finding.ok is False for finding in findings) else 0


def examine(data_dir: Path) -> list[Finding]:
    """Check everything, in one to three seconds. If `data_dir` does not exist, its nearest existing parent is checked.

    Writes a file of 4 MiB there and removes it. Raises nothing for what it finds.
    """
    env = os.environ
    folder = mounts.existing(data_dir)
    site = launch_site.detect_site(env)
    return [
        Finding("Python", True, f"{platform.python_version()} ({sys.executable})"),
        _packages(),
        *_training(),
        _streams(),
        *_mpi(site, env),
        _launcher(site, env),
        _filesystem(folder),
        _cache_control(folder),
        *_check_space(folder),
        _shared_memory(),
        _fuse(),
        _hdf5_locking(folder, env),
        _bytecode(env),
    ]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version, maxsplit=1)[0]))


def _packages() -> Finding:
    """The packages that dlio-bench requires, in their least version or a newer one."""
    lines, fixes = [], []
    for requirement in requires("dlio-bench") or []:
        match = re.fullmatch(r"([\w.-]+)\s*>=\s*([\d.]+)", requirement)
        if match is None:  # belongs to an extra
            continue
        name, least = match.groups()
        version = installed_version(name)
        lines.append(f"{name} {version or 'missing'}")
        if version is None or _release(version) < _release(least):
            fixes.append(f"'{name}>={least}'")
    return Finding("packages", not fixes, ", ".join(lines), f"pip install {' '.join(fixes)}" if fixes else None)


def _training() -> list[Finding]:
    """TensorFlow and Horovod, which are extras."""
    least, below = TENSORFLOW
    versions = ((name, installed_version(name)) for name in DISTRIBUTIONS)
    name, version = next(((name, version) for name, version in versions if version), ("TensorFlow", None))
    fix = "pip install 'dlio-bench[tensorflow]' (Python 3.11 or 3.12)"
    if version is None:
        tensorflow = Finding(
            "TensorFlow", None, "not installed (needed for tfdata, most upstream readers, and real training)", fix
        )
    elif least <= _release(version) < below:
        tensorflow = Finding("TensorFlow", True, f"{name} {version}")
    else:
        wanted = f">={'.'.join(map(str, least))},<{'.'.join(map(str, below))}"
        tensorflow = Finding("TensorFlow", None, f"{name} {version}, but {wanted} is what Horovod builds with", fix)
    horovod = installed_version("horovod")
    if horovod is None:
        fix = "in a clone, scripts/install-horovod builds it for the TensorFlow and the MPI that are installed"
        return [tensorflow, Finding("Horovod", None, "not installed (only needed for real training)", fix)]
    return [tensorflow, Finding("Horovod", True, horovod)]


def _streams() -> Finding:
    """ADIOS2, which is an extra."""
    version = adios.version()
    if version is None:
        return Finding("ADIOS2", None, "not installed (only needed for --reader stream and couple)", adios.EXTRA)
    try:
        adios.require()
    except BenchError as error:
        found, _, fix = str(error).rpartition(". ")
        return Finding("ADIOS2", None, f"{version}, but it cannot be used: {found}", fix)
    return Finding("ADIOS2", True, version)


def _mpi(site: launch_site.LaunchSite, env: Mapping[str, str]) -> list[Finding]:
    """The mpirun, the libmpi that Python loads under it, and whether two ranks meet."""
    if site.mpirun is None:
        found = "no mpirun on the PATH or beside Python: runs of one rank only, unless a scheduler starts the ranks"
        fix = "pip install 'dlio-bench[mpi]', or apt-get install openmpi-bin, or load the site's MPI module"
        return [Finding("mpirun", None, found, fix), _lone_library(env)]
    known = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
    family = known[site.mpi_flavor] if site.mpi_flavor else "of an unknown family"
    mpirun = Finding("mpirun", True, f"{family} {site.mpi_version or ''} ({site.mpirun})".replace("  ", " "))
    ranks = 2
    job = launchers.LaunchRequest(1, ranks, mpi_library.hello_command(), virtual=True)
    settings = launch_env(job, site, env)
    argv = launchers.LAUNCHERS["mpirun"](replace(job, env=settings), site)
    answer = mpi_library.run_probe(argv, {**env, **settings}, _PATIENCE)
    return [mpirun, judge_hello(answer, ranks, site, _remedy(site, env))]


def _remedy(site: launch_site.LaunchSite, env: Mapping[str, str]) -> str:
    """What to try if mpirun and the libmpi that Python loads do not work together."""
    if chosen := [name for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI", "LD_PRELOAD") if name in env]:
        return f"unset {' '.join(chosen)}, so that Python loads the libmpi of the mpirun in use"
    beside = Path(sys.executable).parent
    if (beside / "mpirun").exists() and site.mpirun != str(beside / "mpirun"):
        return f"Put the mpirun beside Python first: export PATH={beside}:$PATH"
    return "Load the MPI module that mpi4py was built for, or: pip install --force-reinstall mpi4py openmpi"


def judge_hello(answer: mpi_library.ProbeOutcome, ranks: int, site: launch_site.LaunchSite, remedy: str) -> Finding:
    """Whether all `ranks` of a job met in one world, on the library that belongs to mpirun."""
    name = "MPI library"
    greetings = mpi_library.parse_greetings(answer.out)
    if answer.status is None:
        return Finding(name, False, f"two ranks under {site.mpirun} did not meet within {_PATIENCE:.0f} s", remedy)
    if answer.status != 0 or len(greetings) != ranks:
        reason = last_words(answer.err or answer.out)
        return Finding(name, False, f"two ranks under {site.mpirun} fail (status {answer.status}): {reason}", remedy)
    loaded = _library(greetings[0])
    if any(greeting.size != ranks for greeting in greetings):
        return Finding(
            name, False, f"{site.mpirun} starts ranks that do not meet: each is alone, with {loaded}", remedy
        )
    if site.libmpi and greetings[0].library and Path(greetings[0].library).resolve() != Path(site.libmpi).resolve():
        return Finding(name, None, f"{loaded} is loaded, not mpirun's own {site.libmpi}; but two ranks meet")
    return Finding(name, True, f"{loaded}; two ranks meet")


def _library(greeting: Greeting) -> str:
    version = mpi_library.version_of(greeting.version) or greeting.version[:40]
    return f"{greeting.library or 'an unknown libmpi'} ({version})"


def _lone_library(env: Mapping[str, str]) -> Finding:
    answer = mpi_library.run_probe(mpi_library.hello_command(), env, _PATIENCE)
    greetings = mpi_library.parse_greetings(answer.out)
    if answer.status == 0 and greetings:
        return Finding("MPI library", True, _library(greetings[0]))
    reason = last_words(answer.err) if answer.status is not None else f"no answer within {_PATIENCE:.0f} s"
    return Finding("MPI library", None, f"mpi4py loads none: {reason}")


def last_words(text: str) -> str:
    """Why a program failed, from its output: Python's error, else the first line with an error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"[A-Za-z]", line)]
    for sign in (r"\w*(Error|Exception): ", r".*\b(error|fatal|abort|cannot|could not|unable|not found|not enough)\b"):
        if complaint := next((line for line in lines if re.match(sign, line, re.IGNORECASE)), None):
            return complaint[:200]
    return (lines or ["it said nothing"])[-1][:200]


def _launcher(site: launch_site.LaunchSite, env: Mapping[str, str]) -> Finding:
    nodes = allocation.nodes(env)
    where = "no scheduler's allocation: several nodes are virtual" if nodes is None else f"an allocation of {nodes}"
    try:
        chosen = launchers.choose(env, launchers.LaunchRequest(max(nodes or 1, 1), 2, ()), site)
    except BenchError as error:
        # without a scheduler this only says again that there is no mpirun, which one rank does not need
        in_job = nodes is not None or "SLURM_JOB_ID" in env or "FLUX_URI" in env
        return Finding("launcher", False if in_job else None, f"{where}; none for several ranks", str(error))
    return Finding("launcher", True, f"{chosen}; {where}")


def _filesystem(folder: Path) -> Finding:
    mount = mounts.mount_of(folder)
    if mount is None:
        return Finding("file system", None, f"{folder}: the kernel does not say what it is on")
    found = f"{folder} is on {mount.type} ({mount.source} at {mount.point})"
    if mounts.memory_backed(folder):
        fix = "Choose a folder on a disk or on the storage to be measured: reads from here are never cold."
        return Finding("file system", None, f"{found}: in memory", fix)
    if mount.type == "zfs" or any(option.startswith("compress") for option in mount.options):
        fix = "Compression makes reads look faster: use data of --fill random, or switch compression off."
        return Finding("file system", None, f"{found}: it compresses", fix)
    return Finding("file system", True, found)


def _cache_control(folder: Path) -> Finding:
    """Write a file, read it, drop it, and ask mincore each time."""
    name = "cache control"
    try:
        with tempfile.NamedTemporaryFile(prefix=".dlio-bench-doctor-", dir=folder) as file:
            file.write(os.urandom(1 << 20) * (_TRIAL_BYTES >> 20))
            file.flush()
            os.fsync(file.fileno())
            path = Path(file.name)
            path.read_bytes()
            before = cache.residency([path])
            cache.drop([path])
            after = cache.residency([path])
    except OSError as error:
        fix = "Name a folder that this user can write (--data)."
        return Finding(name, None, f"not tried: no file can be written in {folder} ({error.strerror})", fix)
    except BenchError as error:
        return Finding(name, False, str(error))
    return _judge_cache(name, before, after)


def _judge_cache(name: str, before: cache.Residency, after: cache.Residency) -> Finding:
    found = f"resident {before.share:.1f} after a read, {after.share:.1f} after a drop"
    if after.memory_backed:
        return Finding(name, None, f"{found}: the data are in memory", "Cold runs need a folder that is not tmpfs.")
    if before.share == 0:
        return Finding(name, None, f"{found}: reads are not cached here", "Warm runs need another file system.")
    if after.share > 0:
        fix = "Use another file system for cold runs, or ask for a warm cache."
        return Finding(name, False, f"{found}: the kernel keeps the pages", fix)
    if not after.attestable:
        return Finding(name, None, f"{found}, but {after.note}", "Cold runs here are marked as not attested.")
    return Finding(name, True, f"{found}, without root")


def _check_space(folder: Path) -> list[Finding]:
    free = shutil.disk_usage(folder).free
    room = memory()
    limit = "no cgroup limit" if room.limit is None else f"cgroup limit {format_bytes(room.limit)}"
    enough, fix = free > _SCRATCH_BYTES, "Free some, or choose another folder."
    return [
        Finding("free space", enough, f"{format_bytes(free)} in {folder}", None if enough else fix),
        Finding("memory", True, f"{format_bytes(room.total)}, {format_bytes(room.available)} available; {limit}"),
        Finding("cores", True, f"{usable_cores()} processors usable, {physical_cores()} physical cores"),
    ]


def _fuse() -> Finding:
    """Own readers emulate a file system in their processes; what reads by itself needs a mount."""
    reason = emulation.available()
    if reason is None:
        return Finding("FUSE", True, "other programs' readers too can be run behind an emulated file system")
    lacking, _, fix = reason.partition(". ")
    cost = "upstream, tfdata, torch, webdataset, couple and --predict cannot be run behind an emulated file system"
    return Finding("FUSE", None, f"{lacking}: {cost}", fix or None)


def _shared_memory(folder: Path = SHARED_MEMORY) -> Finding:
    """Docker gives a container 64 MB of it. Tiers do not need it; MPI checks for itself."""
    room = free_bytes(folder) or 0
    found = f"{format_bytes(room)} free in {folder}"
    if room >= _SHARED_BYTES:
        return Finding("shared memory", True, found)
    cost = "workers of the readers torch and webdataset pass batches through it, and may be ended where it is full"
    return Finding(
        "shared memory", None, f"{found}: {cost}", "Start a container with --shm-size 1g, or use few --threads."
    )


def _hdf5_locking(folder: Path, env: Mapping[str, str]) -> Finding:
    """HDF5 locks the files it opens, which fails on shared file systems without flock(2)."""
    value = env.get("HDF5_USE_FILE_LOCKING")
    if value is not None:
        return Finding("HDF5 locking", True, f"HDF5_USE_FILE_LOCKING={value}")
    if (shared := mounts.cache_beyond(folder)) and shared != "zfs":
        fix = "If opening fails with 'unable to lock file': export HDF5_USE_FILE_LOCKING=FALSE"
        return Finding("HDF5 locking", None, f"files are locked when opened, which {shared} may refuse", fix)
    return Finding("HDF5 locking", True, "files are locked when opened (HDF5's default)")


def _bytecode(env: Mapping[str, str]) -> Finding:
    """Without bytecode every rank compiles what it imports: an import of TensorFlow takes 7 s instead of 2.5 s."""
    site_packages = sysconfig.get_path("purelib")
    if not env.get("PYTHONDONTWRITEBYTECODE"):
        return Finding("bytecode", True, "Python keeps compiled bytecode")
    compiled = next(Path(site_packages, "numpy").glob("__pycache__/*.pyc"), None)
    found = "PYTHONDONTWRITEBYTECODE is set" + ("; packages are compiled already" if compiled else ": slow starts")
    fix = f"unset PYTHONDONTWRITEBYTECODE, or run {sys.executable} -m compileall -q {site_packages}"
    return Finding("bytecode", True, found) if compiled else Finding("bytecode", None, found, fix)


def render(findings: list[Finding]) -> str:
    """A text table, at most 80 columns: a mark, the name, what was found, and below it the fix."""
    marks = {True: "ok", None: "--", False: "!!"}
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        head = f"{marks[finding.ok]}  {finding.name:<{width}}  "
        lines += wrap(finding.found, head)
        if finding.fix:
            lines += wrap(finding.fix, f"{' ' * len(head)}fix: ")
    bad = sum(finding.ok is False for finding in findings)
    last = "ready" if bad == 0 else f"{bad} missing or broken"
    return "\n".join([*lines, "", f"{last}   (ok good, -- worth knowing, !! must be fixed)"]) + "\n"
