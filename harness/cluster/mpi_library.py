"""Which MPI library belongs to an mpirun, which one Python really loads, and what it leaves on disk.

The wheel of mpi4py (4.1) is built for two ABIs and looks for libmpi when `mpi4py.MPI` is imported: first symbols that
are in the process already (a preload), then the files of MPI4PY_LIBMPI, then `lib/` of the virtual environment, of the
user's site and of the interpreter, and only then the loader's own path (mpi4py/_mpiabi.py). So an Open MPI installed as
a wheel beside mpi4py shadows the site's library even under the site's mpirun, and an mpirun of one family meets the
library of the other. Naming the library that belongs to the chosen mpirun settles both; an mpi4py that was compiled on
the site links its library directly and ignores the variable.
"""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.cluster.variables import MPI_PLUGINS
from dlio_bench.harness.machine.temp_folders import temp_folder

Flavor = Literal["openmpi", "mpich", "intel"]

# The ABI's file name, as mpi4py's extension modules need it: MPI.openmpi.so and MPI.mpich.so name these and no other.
# (Debian's MPICH calls itself libmpich.so.12, so the wheel cannot load it: nothing is found, and nothing is forced.)
_SONAMES: dict[Flavor, str] = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12", "intel": "libmpi.so.12"}

_SIGNS: tuple[tuple[str, Flavor], ...] = (
    ("Open MPI", "openmpi"),
    ("OpenRTE", "openmpi"),
    ("PRRTE", "openmpi"),
    ("Intel(R) MPI", "intel"),
    ("HYDRA", "mpich"),
    ("MPICH", "mpich"),
)

_GRACE = 2.0  # seconds to end after SIGTERM, and to be gone after SIGKILL


class ProbeOutcome(Struct, frozen=True):
    """How a short-lived child ended: `status` is None where it had to be killed after the time-out."""

    status: int | None
    out: str
    err: str


def run_probe(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> ProbeOutcome:
    """Run a program that may hang, and end it after `seconds`.

    SIGTERM goes first, so that an mpirun can end its ranks (they are in process groups of their own), then SIGKILL.
    A program that cannot be started gives status 127 and the reason in `err`.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        return ProbeOutcome(127, "", str(error))
    with child:
        for sign, patience in ((None, seconds), (signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
            if sign is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, sign)
            try:
                out, err = child.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                continue
            return ProbeOutcome(child.returncode if sign is None else None, out, err)
        for pipe in (child.stdout, child.stderr):  # a grandchild may hold them open: do not wait for it
            if pipe is not None:
                pipe.close()
    return ProbeOutcome(None, "", "")


def flavor_of(text: str) -> Flavor | None:
    """The family of an `mpirun --version` text, or of MPI_Get_library_version's."""
    return next((flavor for sign, flavor in _SIGNS if sign in text), None)


def version_of(text: str) -> str | None:
    """The first dotted number of such a text: '5.0.11'."""
    match = re.search(r"\d+\.\d+(?:\.\d+)*", text)
    return match[0] if match else None


def library_of(mpirun: str, flavor: Flavor | None) -> str | None:
    """The libmpi installed with this mpirun, or None where it is not in a known place.

    Places, below the folder that holds bin/: lib and lib64 (wheels, source builds, modules, Red Hat, SUSE), the
    multi-architecture folder (Debian), lib/release (Intel MPI up to 2021.10). Links are followed first: /usr/bin/mpirun
    is often an alternative that leads elsewhere.
    """
    if flavor is None:
        return None
    machine = f"{platform.machine()}-linux-gnu"
    for program in (Path(mpirun).resolve(), Path(mpirun)):
        for place in ("lib", "lib64", f"lib/{machine}", f"lib/{machine}/openmpi/lib", "lib/release"):
            library = program.parent.parent / place / _SONAMES[flavor]
            if library.is_file():
                return str(library)
    return None


def pairing_env(library: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """Settings by which ranks load `library` (see the module's text); empty where the user has chosen already."""
    if library is None or "MPI4PY_LIBMPI" in env or "MPI4PY_MPIABI" in env:
        return {}
    return {"MPI4PY_LIBMPI": library}


def loaded_library(maps: str | None = None) -> str | None:
    """The path of the libmpi mapped into this process (or in the text of a /proc/PID/maps), None if there is none."""
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text()
        except OSError:
            return None
    # address, permissions, offset, device, inode, and a path that may hold spaces (proc_pid_maps(5))
    match = re.search(r"^(?:\S+ +){5}(/.*/libmpi(?:ch|_\w+)?\.so\S*)$", maps, re.MULTILINE)
    return match[1] if match else None


# What each rank of a probe runs: no dlio_bench in it, so that it tests MPI alone. One write per rank keeps lines whole.
HELLO = """
import json, os
from mpi4py import MPI
maps = open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else ""
world = MPI.COMM_WORLD
os.write(1, (json.dumps({"rank": world.rank, "size": world.size, "version": MPI.Get_library_version().split(chr(0))[0],
                         "maps": [line for line in maps.splitlines() if "libmpi" in line]}) + chr(10)).encode())
"""


class Greeting(Struct, frozen=True):
    """What one rank prints in a probe: its rank, the world's size, the library it loaded and what that calls itself."""

    rank: int
    size: int
    library: str | None
    version: str


def hello_command() -> tuple[str, ...]:
    """The command that each rank of a probe runs (this interpreter, nothing imported from the working folder)."""
    return (sys.executable, "-P", "-c", HELLO)


def parse_greetings(out: str) -> list[Greeting]:
    """The ranks' greetings in a probe's output, by rank; other lines are skipped."""
    ranks = []
    for line in out.splitlines():
        try:
            greeting = json.loads(line[line.index("{") :])
            library = loaded_library("\n".join(greeting["maps"]))
            ranks.append(Greeting(greeting["rank"], greeting["size"], library, " ".join(greeting["version"].split())))
        except (ValueError, KeyError, TypeError):
            continue
    return sorted(ranks, key=lambda greeting: greeting.rank)


# MPI in a process that no launcher has started: all that Open MPI keeps on disk for it is removed here.
#
# Open MPI 5 leaves that to the launcher's daemon, and there is none (its pull request 13261): a segment of 16 MiB in
# /dev/shm, and a folder of the session.

_LAUNCHED = ("PMIX_", "PMI_", "OMPI_COMM_")  # variables of a process that a launcher has started begin so
_TRANSPORTS = "OMPI_MCA_btl"


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """MPI is loaded inside, and begins; a rank that a launcher has started loads it as always.

    One process needs no memory shared with others, and its session's folder only while MPI begins.
    """
    if any(name.startswith(_LAUNCHED) for name in os.environ):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="dlio-bench-mpi-") as folder:
        settings = {"TMPDIR": folder, _TRANSPORTS: os.environ.get(_TRANSPORTS, "self")}
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


# The files of Open MPI for a job on one host, in folders that go with the job: killed daemons and ranks leave them.
#
# On several hosts they stay where Open MPI puts them: a folder of this host would not be there on the others.

SESSION_FOLDER = "dlio-bench-session-"
_OF_DAEMONS = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")  # Open MPI 5 and 4
_OF_RANKS = "OMPI_MCA_btl_vader_backing_directory"  # the memory that they share; of both versions


@contextmanager
def in_session_folder(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment for a launcher on this host. What the user has set stays. OSError."""
    with temp_folder(SESSION_FOLDER) as session, temp_folder(SESSION_FOLDER, SHARED_MEMORY) as shared:
        yield dict.fromkeys(_OF_DAEMONS, str(session)) | {_OF_RANKS: str(shared)} | dict(env)


def why_unconnected(ranks: int, size: int, library: str | None) -> str:
    """The message where `ranks` were asked for and came up in worlds of `size`, as under srun without its plug-in.

    library: name and version of the MPI library.
    """
    wrong = f"{ranks} ranks were asked for, but they came up in worlds of {size}"
    if "SLURM_STEP_ID" not in os.environ:
        return (
            f"{wrong}: the launcher and the MPI library do not belong together. `dlio-bench doctor` shows both; choose "
            "another with --launcher."
        )
    known = os.environ.get(MPI_PLUGINS)
    return (
        f"{wrong}: srun did not connect them, as its --mpi does not fit the MPI library ({library}). Take "
        "SLURM_MPI_TYPE and --mpi out of the way, or name there what the library speaks: pmix for Open MPI, pmi2 for "
        f"MPICH and Intel MPI.{f' `srun --mpi=list` has {known}.' if known else ''} Or use --launcher mpirun."
    )
