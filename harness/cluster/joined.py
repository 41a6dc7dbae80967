"""Ranks that somebody else has started (`--launcher none`): they meet through MPI, and run the jobs of one command.

Every process of `mpirun -n 8 dlio-bench run ... --launcher none` calls `take_part`. Rank 0 starts the command as a
child, which does what it does under any launcher. Where it would start ranks it starts this module (`main`), which asks
rank 0 for them through a socket; rank 0 passes the job on to all, and all run it, their output tied to that process.
When the command ends, all ranks end with its exit status.
"""

import json
import os
import runpy
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import interfaces, links, mpi
from dlio_bench.harness.cluster.life import after_the_first, launcher_rank, life, processes_started_together, stop_pulse
from dlio_bench.harness.cluster.mpi_library import why_unconnected
from dlio_bench.harness.cluster.process import EVENT, python_command
from dlio_bench.harness.cluster.variables import STARTED
from dlio_bench.processes import die_with_parent

DOOR = "door"  # the socket at which rank 0 takes requests
HELLO, LEFT = "@dlio-bench-rank ", "@dlio-bench-left "  # first and last line of a rank: its number, its exit status
ASK_STACKS = b"s"
_LOOK_SECONDS = 0.05
_END_SECONDS = 60.0  # that a rank which failed waits for the command to tell why, and to end all
_OF_LAUNCHERS = ("PMIX_", "PMI_", "OMPI_COMM_", "OMPI_UNIVERSE", "PRTE_LAUNCHED", "HYDI_", "MPI_LOCAL")


def take_part(argv: Sequence[str]) -> int:
    """Be one of the ranks of the command `dlio-bench argv`; its exit status. Errors are raised on rank 0."""
    started = processes_started_together(os.environ)
    world = mpi.whole_world("--launcher none")
    if started > 1 and world.Get_size() != started:  # each would be a world of its own, and all would do the same
        if launcher_rank():
            after_the_first()
            return EnvironmentFailure.status
        raise EnvironmentFailure(why_unconnected(started, world.Get_size(), mpi.mpi_version()))
    failure, scale = None, (1, 1)
    try:
        scale = _scale(world)
    except UsageError as error:
        failure = error
    rank = world.Get_rank()
    if failure is not None:
        if rank == 0:
            raise failure
        after_the_first()
        return failure.status
    mpi.on_abort = _wait_for_the_end
    address = interfaces.serving(world)[0].address
    return _run_command_and_serve(world, argv, scale, address) if rank == 0 else _follow(world)


def _scale(world: mpi.World) -> tuple[int, int]:
    """Nodes, and ranks on each. UsageError on all ranks where nodes have unequal numbers, or ranks are dealt around."""
    places = mpi.places(world)
    sizes = sorted({size for _, _, size in places})
    if len(sizes) > 1:
        raise UsageError(
            f"--launcher none: hosts have unequal numbers of ranks ({', '.join(map(str, sizes))}). Start as many on "
            "each."
        )
    if any(rank != first + local for rank, (first, local, _) in enumerate(places)):
        raise UsageError(
            "--launcher none: ranks must fill host after host, but here they are dealt around. Start them in blocks "
            f"(mpirun --map-by ppr:{sizes[0]}:node, srun --distribution=block)."
        )
    return len(places) // sizes[0], sizes[0]


def _run_command_and_serve(world: mpi.World, argv: Sequence[str], scale: tuple[int, int], address: str) -> int:
    """Rank 0: the command is a child, and asks for jobs at a door. address: at which the other hosts reach this one."""
    with tempfile.TemporaryDirectory(prefix="dlio-bench-") as folder, socket.socket(socket.AF_UNIX) as door:
        door.bind(str(Path(folder) / DOOR))
        door.listen()
        door.settimeout(_LOOK_SECONDS)
        env = without_rank_variables(os.environ) | {STARTED: f"{scale[0]} {scale[1]} {address} {folder}"}
        command = subprocess.Popen(
            python_command("dlio_bench", *argv),
            env=env,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - one system call, no lock taken
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda which, _: command.send_signal(which))
        while (status := command.poll()) is None:
            request = _request(door)
            if request is None:
                continue
            over = threading.Event()
            threading.Thread(target=_end_with, args=(command, over, world), daemon=True).start()
            _run_together(world, request)
            over.set()
    status = status if status >= 0 else EnvironmentFailure.status
    _run_together(world, {"status": status})
    return status


def _follow(world: mpi.World) -> int:
    """The other ranks: they do what rank 0 passes on, and end without a word when they are ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    while True:
        status = _run_together(world, None)
        if status is not None:
            return status


def without_rank_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what tells a process that it is a rank."""
    return {name: value for name, value in env.items() if not name.startswith(_OF_LAUNCHERS)}


def _request(door: socket.socket) -> dict[str, Any] | None:
    """What the relay asks for, as `relay` sends it: one line of JSON. None: nothing yet."""
    with suppress(TimeoutError), door.accept()[0] as caller, caller.makefile() as lines:
        request: dict[str, Any] = json.loads(lines.readline())
        return request
    return None


def _end_with(command: "subprocess.Popen[bytes]", over: threading.Event, world: mpi.World) -> None:
    """End all ranks when the command ends during a job: it has told why."""
    while not over.wait(_LOOK_SECONDS):
        if (status := command.poll()) is not None:
            world.Abort(status if status > 0 else EnvironmentFailure.status)


def _run_together(world: mpi.World, request: dict[str, Any] | None) -> int | None:
    """Rank 0 passes on a request, and all do it. The exit status at the end of all; None after a job."""
    mpi.wait_for([world.Ibarrier()])  # polled: idle ranks leave the cores to the command
    request = world.bcast(request)
    assert request is not None
    if "status" in request:
        return int(request["status"])
    _run(world.Get_rank(), request)
    return None


def _run(rank: int, request: Mapping[str, Any]) -> None:
    """Run one job on this rank, its output tied to the relay."""
    link = _dial(request)
    link.sendall(f"{HELLO}{rank}\n".encode())
    threading.Thread(target=_obey, args=(link,), daemon=True).start()
    kept = [os.dup(number) for number in (1, 2)]
    _flush()
    for number in (1, 2):
        os.dup2(link.fileno(), number)
    try:
        status = _run_module(request["module"], request["folder"])
    finally:
        stop_pulse()
        _flush()
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
    with suppress(OSError):
        link.sendall(f"{LEFT}{status}\n".encode())
    links.shut_down(link)
    links.close(link)


def _dial(request: Mapping[str, Any]) -> socket.socket:
    """A connection to the relay. EnvironmentFailure."""
    identity, token = bytes.fromhex(request["identity"]), bytes.fromhex(request["token"])
    host, port = request["host"], request["port"]
    if (link := links.dial(host, port)) is not None:
        if links.introduce(link, token, identity, links.PATIENCE_SECONDS):
            links.limit_waits(link, receiving=None, sending=None)
            return link
        links.close(link)
    raise EnvironmentFailure(
        f"--launcher none: this rank cannot reach the command at {host}, port {port}. Name an interface that all hosts "
        "reach with --interface."
    )


def _run_module(module: str, folder: str) -> int:
    """As `python -P -m module folder`; the exit status."""
    life.__init__()  # type: ignore[misc]  # a new job: nothing has moved yet
    argv, sys.argv = sys.argv, [module, folder]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = argv
    return 0


def _obey(link: socket.socket) -> None:
    """The relay passes SIGUSR1 on."""
    with suppress(OSError):
        while link.recv(1) == ASK_STACKS:
            os.kill(os.getpid(), signal.SIGUSR1)


def _wait_for_the_end(status: int) -> None:
    """In place of MPI_Abort, which would also end the command before it told why: it ends all by itself."""
    _flush()
    with suppress(OSError):
        os.write(1, f"{LEFT}{status}\n".encode())
    time.sleep(_END_SECONDS)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


# What a command starts in place of a launcher where its ranks are there already:
# `python -P -m dlio_bench.harness.cluster.joined MODULE FOLDER` has the ranks run MODULE on the job in FOLDER. Their
# output comes out here, events as they are, other lines led by the rank. It ends with the status of a rank that fails.

LAST_WORDS_SECONDS = 1.0  # of the other ranks, after one has failed


class Caller(Struct):
    """A rank's connection, and the beginning of the line that it is in."""

    rank: int | None = None
    rest: bytes = b""
    has_left: bool = False


def main() -> int:
    """Run it; the exit status of the job."""
    die_with_parent()
    module, folder = sys.argv[1:]
    nodes, per_node, host, place = os.environ[STARTED].split(" ", 3)
    listener, address = links.listen(host)
    token = secrets.token_bytes(16)
    request = {
        "module": module,
        "folder": folder,
        "host": address.host,
        "port": address.port,
        "identity": address.identity.hex(),
        "token": token.hex(),
    }
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(Path(place) / DOOR))
        door.sendall(json.dumps(request).encode() + b"\n")
    return _relay(listener, address.identity, token, int(nodes) * int(per_node))


def _relay(listener: socket.socket, identity: bytes, token: bytes, ranks: int) -> int:
    """Pass on what the ranks say until all have left, or one has failed and had the time for its last words."""
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        callers: dict[socket.socket, Caller] = {}
        signal.signal(signal.SIGUSR1, lambda *_: _ask(callers))
        left = status = 0
        while left < ranks:
            events = ready.select(LAST_WORDS_SECONDS if status else None)
            if status and not events:
                break
            for key, _ in events:
                if key.fileobj is listener:
                    _admit(listener, identity, token, callers, ready)
                    continue
                link = key.fileobj
                assert isinstance(link, socket.socket)
                caller = callers[link]
                chunk = _receive(link)
                *lines, caller.rest = (caller.rest + chunk).split(b"\n")
                for line in lines:
                    end = _handle_line(caller, line.decode(errors="replace"))
                    if end is not None and not caller.has_left:
                        caller.has_left, left, status = True, left + 1, status or end
                if not chunk:
                    ready.unregister(link)
                    if not caller.has_left:
                        caller.has_left, left, status = True, left + 1, status or EnvironmentFailure.status
        return status


def _admit(
    listener: socket.socket,
    identity: bytes,
    token: bytes,
    callers: dict[socket.socket, Caller],
    ready: selectors.BaseSelector,
) -> None:
    caller = listener.accept()[0]
    with suppress(OSError):  # somebody who is no rank of this job
        if links.admit(caller, token, identity, links.PATIENCE_SECONDS):
            callers[caller] = Caller()
            ready.register(caller, selectors.EVENT_READ)
            return
    links.close(caller)


def _receive(link: socket.socket) -> bytes:
    try:
        return link.recv(1 << 16)
    except OSError:
        return b""


def _handle_line(caller: Caller, line: str) -> int | None:
    """Print a line of a rank; its exit status where that is what it says."""
    if line.startswith(HELLO) and caller.rank is None:
        caller.rank = int(line.removeprefix(HELLO))
    elif LEFT in line:
        return int(line.partition(LEFT)[2])
    else:
        print(line if EVENT in line else f"[{caller.rank}] {line}", flush=True)
    return None


def _ask(callers: dict[socket.socket, Caller]) -> None:
    for link in list(callers):
        with suppress(OSError):
            link.sendall(ASK_STACKS)


if __name__ == "__main__":
    raise SystemExit(main())
