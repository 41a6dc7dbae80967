"""`dlio-bench calibrate`: test files made, ranks launched to read them, a system description written."""

import json
import os
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dlio_bench import __version__
from dlio_bench.atomic_files import write_whole
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.environment import host_name, timestamp
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.cluster.system import STAGING
from dlio_bench.harness.commands.calibration import description
from dlio_bench.harness.commands.calibration.options import Options
from dlio_bench.harness.commands.calibration.probes import require_decode
from dlio_bench.harness.commands.calibration.rank import ProbeJob
from dlio_bench.harness.commands.storage_bench.folder import claim_work_folder, write_files
from dlio_bench.harness.commands.storage_bench.sizing import FileSetShape
from dlio_bench.harness.ground.defaults import STAGING_BYTES
from dlio_bench.harness.ground.folders import require_file, require_storage, work_folder
from dlio_bench.harness.ground.launching import run_ranks
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.ground.user_files import to_toml
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.storage.pfs import emulation, spec
from dlio_bench.harness.storage.tier import default_disk, default_ram
from dlio_bench.units import format_bytes

BYTES = 512_000_000  # of the test files, without --size
SHARE_OF_FREE = 0.10  # of a file system that belongs to others too
FILE_BYTES = 64 << 20  # at most
READERS_A_FILE = 2  # files are at least as many as half of the readers, so that they do not queue for one


def calibrate(options: Options) -> int:
    """The whole command: 0 when the description is written. Raises BenchError."""
    out = options.out or Path("system.toml")
    require_file(out)
    before = description.read_declared(out) if out.exists() else None
    if before is not None:
        description.require_measured(before, out, local=options.local is not None)
    progress = Progress()
    rates = measure_table(options, progress)
    progress.clear()
    declares = before if before is not None and before.strip() else default_declaration(options)
    description.system_of(declares, rates, str(out))  # refused before it is written
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, description.text(declares, rates).encode())
    if options.json:
        print(json.dumps({"schema": "dlio-bench/calibration/1", "file": str(out), "measured": rates}, indent=1))
    else:
        print(f"{to_toml({'measured': rates})}\nwritten to {out}")
    return 0


def measure_table(options: Options, progress: Progress) -> dict[str, Any]:
    """The [measured] table of this machine. UsageError for what cannot be asked; EnvironmentFailure, OSError."""
    _require(options)
    ranks = Ranks(
        "commands.calibration.rank", options.nodes, 1, options.launcher, allocation.are_virtual(options.nodes)
    )
    ranks.start()  # what cannot be launched is refused before anything is made
    seed = int.from_bytes(os.urandom(4), "little")  # new bytes each time: nothing below may know them already
    with claim_work_folder(options.pfs) as place:
        shape = _shape(options, place)
        files = write_files(place, shape, seed, lambda done, all_: progress.amount("making test files", done, all_))
        job = ProbeJob(
            options=replace(options, local=None if options.local is None else options.local.absolute()),
            sizes=tuple(size for size in options.sample_bytes if size <= shape.file_bytes),
            folder=str(place),
            files=tuple(Path(path).name for path in files.paths),
            file_bytes=shape.file_bytes,
            seed=seed,
        )
        with emulation.places(options.emulate_pfs, place, options.nodes) as (mounts, board):
            placed, show = replace(job, mounts=mounts, board=board), progress.lines_under("calibrating")
            rates = run_ranks(ranks.start, placed, work_folder(place), show, share="name one with --pfs")
    return description.measured_table(rates, _origins(options, rates, seed, virtual=ranks.virtual))


def default_declaration(options: Options) -> str:
    """A [declared] part to begin with: this machine's name and sizes."""
    nodes = options.nodes if allocation.are_virtual(options.nodes) else 1  # of this machine
    sizes = {STAGING: STAGING_BYTES, description.MEMORY: default_ram(memory_bytes() // nodes, nodes)}
    if options.local is not None:
        sizes[description.DISK] = default_disk(options.local, nodes)
    head = "# What people know of this machine; the keys are explained in harness/cluster/systems/deck.toml.\n"
    return head + to_toml({"declared": description.declared_table(host_name(), max(options.threads), sizes)})


def _require(options: Options) -> None:
    """UsageError for what is out of range or not there; EnvironmentFailure where nothing can be emulated."""
    for flag, folder in (("--pfs", options.pfs), ("--local", options.local)):
        if folder is not None:
            require_storage(folder, f"{flag} {folder}")
    if options.workload is not None:
        require_decode(options.workload)
    if options.emulate_pfs is not None:
        if allocation.nodes() is not None:
            raise UsageError("--emulate-pfs plays nodes on one machine, but here a scheduler has given real ones.")
        if reason := emulation.available():
            raise EnvironmentFailure(f"A parallel file system cannot be emulated here. {reason}")


def _shape(options: Options, place: Path) -> FileSetShape:
    """The test files: as many bytes as were asked for, or as are enough, in files that all threads can share."""
    free, readers = free_bytes(place), options.nodes * max(options.threads)
    largest = max(options.sample_bytes)
    total = options.size
    if total is None:
        total = BYTES if free is None else min(BYTES, int(SHARE_OF_FREE * free))
    if free is not None and total > free:
        raise EnvironmentFailure(
            f"The test files need {format_bytes(total)}, and {options.pfs} has {format_bytes(free)} free. Free space "
            "there, choose another folder, or ask for less with --size."
        )
    files = max(2, -(-total // FILE_BYTES), -(-readers // READERS_A_FILE))
    each = total // files // largest * largest
    if each < largest or files * each < readers * largest:
        raise UsageError(
            f"{readers} threads need at least a read of {format_bytes(largest)} each, and the test files have "
            f"{format_bytes(total)}. Ask for more with --size, or for smaller --sample-bytes or fewer --threads."
        )
    return FileSetShape(largest, each // largest, files)


def _origins(options: Options, rates: dict[str, Any], seed: int, *, virtual: bool) -> dict[str, str]:
    """Who measured, when and on what."""
    by = {
        "created": timestamp(),
        "version": __version__,
        "hosts": ", ".join(rates["hosts"]),
        "nodes": f"{options.nodes}{' virtual' if virtual else ''}",
        "pfs": str(options.pfs.absolute()),
        "data": f"test files of random bytes, seed {seed}",
    }
    if options.emulate_pfs is not None:
        by["emulated"] = spec.describe(options.emulate_pfs)
    if options.local is not None:
        by["local"] = str(options.local.absolute())
    if options.workload is not None:
        by["workload"] = options.workload
    return by
