"""Steps of named arrays through ADIOS2: one writer or one reader of one stream. ADIOS2 is imported here alone.

Calls go to the C library that its wheel brings, or a site's own build, and not to its Python module: that module holds
the interpreter's lock while it waits for the other side (tried with 2.12.1), and a rank has other threads, which read
ahead and tell that it lives. In the wheels a stream has one writing process, and each reading process reads on its own.

Parameters: https://adios2.readthedocs.io/en/v2.12.1/engines/engines.html, "SST Sustainable Staging Transport".
"""

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dlio_bench.errors import EnvironmentFailure, StreamLost, StreamTimeout

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]

SST, BP = "sst", "bp"
ENGINES = {SST: "SST", BP: "BP5"}
EXTRA = "pip install 'dlio-bench[stream]'"
SITE = "ADIOS2_DIR"  # the prefix of a site's build, which CMake and environment modules name so
LIBRARY = "libadios2_c.so"
WAN, RDMA, UCX = TRANSPORTS = ("wan", "rdma", "ucx")  # of SST's data; those of RDMA are in a site's build alone

# SpeculativePreloadMode: its default lets a single reader spend 20 times the CPU seconds (12.6 against 0.5 for 1 GB).
SAFE = {SST: {"DataTransport": "WAN", "SpeculativePreloadMode": "OFF", "MarshalMethod": "BP5"}, BP: {"Profile": "Off"}}
JOIN_SECONDS = 60.0
FIRST_LOOK, LONGEST_LOOK = 50e-6, 2e-3  # seconds between two looks for a step
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.02  # between two looks for a file

# adios2_c_types.h, version 2.12.1
_WRITE, _READ, _DEFERRED, _SYNC = 1, 2, 4, 5
_APPEND_STEP, _READ_STEP = 0, 2
_OK, _NOT_READY, _END = 0, 1, 2
_TYPES = {
    "float32": 1, "float64": 2, "int8": 5, "int16": 6, "int32": 7, "int64": 8, "uint8": 9, "uint16": 10, "uint32": 11,
    "uint64": 12,
}  # fmt: skip
_DTYPES = {number: np.dtype(name) for name, number in _TYPES.items()}
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "init_serial": (c_void_p, ()),
    "declare_io": (c_void_p, (c_void_p, c_char_p)),
    "set_engine": (c_int, (c_void_p, c_char_p)),
    "set_parameter": (c_int, (c_void_p, c_char_p, c_char_p)),
    "define_variable": (c_void_p, (c_void_p, c_char_p, c_int, c_size_t, c_void_p, c_void_p, c_void_p, c_int)),
    "set_shape": (c_int, (c_void_p, c_size_t, c_void_p)),
    "set_selection": (c_int, (c_void_p, c_size_t, c_void_p, c_void_p)),
    "open": (c_void_p, (c_void_p, c_char_p, c_int)),
    "begin_step": (c_int, (c_void_p, c_int, c_float, POINTER(c_int))),
    "put": (c_int, (c_void_p, c_void_p, c_void_p, c_int)),
    "get": (c_int, (c_void_p, c_void_p, c_void_p, c_int)),
    "end_step": (c_int, (c_void_p,)),
    "inquire_variable": (c_void_p, (c_void_p, c_char_p)),
    "variable_ndims": (c_int, (POINTER(c_size_t), c_void_p)),
    "variable_shape": (c_int, (POINTER(c_size_t), c_void_p)),
    "variable_type": (c_int, (POINTER(c_int), c_void_p)),
    "close": (c_int, (c_void_p,)),
    "finalize": (c_int, (c_void_p,)),
}


def library() -> Path | None:
    """The C library: the site's, else the one beside or above ADIOS2's Python module; None where there is none."""
    folders = []
    if site := os.environ.get(SITE):
        folders += [Path(site, "lib64"), Path(site, "lib"), Path(site).parent.parent]  # the last of <lib>/cmake/adios2
    elif (spec := importlib.util.find_spec("adios2")) is not None and spec.origin is not None:
        folders += [Path(spec.origin).parent, *Path(spec.origin).parents[3:5]]
    return next((path for folder in folders if (path := folder / LIBRARY).exists()), None)


def version() -> str | None:
    """The version of the ADIOS2 that is used, by the longest name of its library; None where there is none."""
    path = library()
    if path is None:
        return None
    names = [LIBRARY, *(other.name for other in path.parent.glob(f"{LIBRARY}.*"))]
    return max(names, key=len).removeprefix(LIBRARY).removeprefix(".") or "of no known version"


def require_transport(wanted: str) -> None:
    """EnvironmentFailure where ADIOS2 would move the data of a stream by another transport here than by `wanted`.

    It then takes another and says so in its log alone: a process of its own opens a stream, and its log is read. A
    reader follows its writer, or fails. WAN, which is sockets, is in every build.
    """
    if wanted == WAN:
        return
    command = [sys.executable, "-P", "-m", "dlio_bench.harness.streams.adios", wanted]
    done = subprocess.run(command, env={**os.environ, "SstVerbose": "2"}, capture_output=True, text=True, check=False)
    found = re.search(r'Selecting DataPlane "(\w+)"', done.stderr + done.stdout)
    if found is None or found[1] != wanted:
        instead = "opens no stream" if found is None else f"takes {found[1]} instead"
        raise EnvironmentFailure(
            f"--stream-transport {wanted}: the ADIOS2 {version()} in {library()} {instead} on {socket.gethostname()}. "
            f"Name a build that has this transport with {SITE}=PREFIX, or use --stream-transport {WAN}."
        )


def require() -> None:
    """EnvironmentFailure, with the fix, where ADIOS2 is not installed or does not load."""
    _library()


class _Stream:
    """An engine and the ADIOS2 object that holds it, which no other engine shares: threads need no lock."""

    def __init__(self, path: Path, engine: str, parameters: Mapping[str, object], mode: int) -> None:
        self.path = path
        self._adios = _library().init_serial()
        self._io = _require_address(_library().declare_io(self._adios, b"stream"), path)
        _require_success(_library().set_engine(self._io, ENGINES[engine].encode()), path)
        for key, value in {**SAFE[engine], **parameters}.items():
            _require_success(_library().set_parameter(self._io, key.encode(), str(value).encode()), path)
        self._fresh = True  # no step has gone through yet
        self._engine: int | None = _require_address(_library().open(self._io, str(path).encode(), mode), path)

        send_at_once()

    def _count_step(self) -> None:
        """A step has gone through. ADIOS2 may have connected for the first of them."""
        if self._fresh:
            self._fresh = False
            send_at_once()

    def close(self) -> None:
        """End the stream. A writer waits until its readers have what it has put."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            _library().close(engine)
            _library().finalize(self._adios)


class StreamWriter(_Stream):
    """Writes the steps of one stream."""

    def __init__(
        self, path: Path, *, engine: str = SST, readers: int = 1, parameters: Mapping[str, object] | None = None
    ) -> None:
        """Wait until as many `readers` have opened the stream of this path (SST), then begin.

        parameters: ADIOS2's own, beyond SAFE. For SST: QueueLimit, QueueFullPolicy, StepDistributionMode, ...
        """
        waits = {"RendezvousReaderCount": readers} if engine == SST else {}
        super().__init__(path, engine, {**waits, **(parameters or {})}, _WRITE)
        self._variables: dict[str, tuple[int, Array]] = {}  # and the last array, which must live until the step ends

    def put(self, step: Arrays) -> None:
        """Write one step: contiguous arrays by name, each of the type and number of axes of the step before.

        Numbers are arrays without axes.

        Waits while the queue is full, if QueueFullPolicy is Block. The arrays may change when it returns.
        """
        assert self._engine is not None
        status = c_int()
        _require_success(_library().begin_step(self._engine, _APPEND_STEP, -1.0, byref(status)), self.path)
        for name, array in step.items():
            _require_success(
                _library().put(self._engine, self._variable(name, array), array.ctypes.data, _DEFERRED), self.path
            )
        _require_success(_library().end_step(self._engine), self.path)
        self._count_step()

    def _variable(self, name: str, array: Array) -> int:
        if not array.flags.c_contiguous:
            raise ValueError(f"'{name}' is not contiguous")
        shape = (c_size_t * array.ndim)(*array.shape)
        origin = (c_size_t * array.ndim)()
        if name in self._variables:
            variable, last = self._variables[name]
            if last.shape != array.shape:
                _require_success(_library().set_shape(variable, array.ndim, shape), self.path)
                _require_success(_library().set_selection(variable, array.ndim, origin, shape), self.path)
        else:
            kind = _TYPES[array.dtype.name]
            made = _library().define_variable(self._io, name.encode(), kind, array.ndim, shape, origin, shape, 0)
            variable = _require_address(made, self.path)
        self._variables[name] = variable, array
        return variable


class StreamReader(_Stream):
    """Reads the steps of one stream."""

    def __init__(
        self,
        path: Path,
        *,
        engine: str = SST,
        parameters: Mapping[str, object] | None = None,
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        """Open the stream of this path, waiting for its writer. StreamTimeout."""
        await_stream(path, engine, join_seconds)
        waits = {"OpenTimeoutSecs": max(1, round(join_seconds))}
        super().__init__(path, engine, {**waits, **(parameters or {})}, _READ)
        self._in_step = False

    def begin(self, seconds: float, *, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the next step; whether there is one. StreamLost, StreamTimeout after `seconds`.

        given_up: whether nobody wants the step any more; there is none then.

        ADIOS2 is asked whether a step is there, and not to wait for one: where a step comes just when a wait of its own
        ends, version 2.12.1 dies by a segmentation fault.
        """
        assert self._engine is not None
        deadline, status, pause = time.monotonic() + seconds, c_int(), FIRST_LOOK
        while not given_up():
            _require_success(_library().begin_step(self._engine, _READ_STEP, 0.0, byref(status)), self.path)
            if status.value == _OK:
                return True
            if status.value == _END:
                return False
            if status.value != _NOT_READY:
                raise StreamLost(f"The writer of the stream {self.path.name} has ended before the stream did.")
            if time.monotonic() > deadline:
                raise StreamTimeout(f"The writer of the stream {self.path.name} sent nothing for {seconds:g} s.")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK)
        return False

    def get(self, name: str, out: Array | None = None) -> Array:
        """An array of the present step; in `out`, one axis of the right type and at least its length, if given.

        A number, an array without axes, came with the step. Any other array is a request to the writer.
        """
        variable = _require_address(_library().inquire_variable(self._io, name.encode()), self.path)
        axes, kind = c_size_t(), c_int()
        _require_success(_library().variable_ndims(byref(axes), variable), self.path)
        shape = (c_size_t * axes.value)()
        if axes.value:
            _require_success(_library().variable_shape(shape, variable), self.path)
        _require_success(_library().variable_type(byref(kind), variable), self.path)
        dtype = _DTYPES[kind.value]
        array = np.empty(tuple(shape), dtype) if out is None else out[: shape[0]].view(dtype)
        if array.shape != tuple(shape):
            raise ValueError(f"'{name}' has the shape {tuple(shape)} and does not fit into {array.shape}")
        if axes.value:
            _require_success(
                _library().set_selection(variable, axes.value, (c_size_t * axes.value)(), shape), self.path
            )
        _require_success(_library().get(self._engine, variable, array.ctypes.data, _SYNC), self.path)
        return array

    def end(self) -> None:
        """The present step is over: the writer may forget it."""
        _require_success(_library().end_step(self._engine), self.path)
        self._count_step()

    def next(self, seconds: float) -> dict[str, Array] | None:
        """All arrays of the next step, None behind the last. StreamLost, StreamTimeout."""
        if not self.begin(seconds):
            return None
        names = self._names()
        step = {name: self.get(name) for name in names}
        self.end()
        return step

    def _names(self) -> list[str]:
        count = c_size_t()
        listed = _library().available_variables(self._io, byref(count))
        try:
            return [ctypes.string_at(listed[place]).decode() for place in range(count.value)]
        finally:
            for place in range(count.value):
                _free(listed[place])
            _free(listed)


def send_at_once() -> None:
    """Have the TCP connections of this process send small messages at once (TCP_NODELAY).

    ADIOS2 2.12.1 leaves that out, so that a request of a reader may wait 40 ms until TCP has an answer to send along
    (RFC 896, RFC 1122 4.2.3.2). Steps of 100 KB came at 25 MB/s with it, and come at 190 MB/s.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(entry.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def contact_path(path: Path, engine: str = SST) -> Path:
    """The file or folder by which readers find the writer of a stream."""
    return path.with_name(f"{path.name}.sst") if engine == SST else path


def forget(left: Path) -> None:
    """Remove the file or folder of a stream that is over."""
    if left.is_dir():
        shutil.rmtree(left, ignore_errors=True)
    else:
        left.unlink(missing_ok=True)


def await_stream(path: Path, engine: str, seconds: float) -> None:
    """Return when the writer of a stream has begun. StreamTimeout."""
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
    while not contact_path(path, engine).exists():
        if time.monotonic() > deadline:
            raise StreamTimeout(f"The writer of the stream {path.name} did not come within {seconds:g} s.")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        with suppress(OSError):  # shared file systems look again when their folder is read
            next(path.parent.iterdir(), None)


@functools.cache
def _library() -> Any:
    """The functions of ADIOS2's C library, without their prefix. EnvironmentFailure."""
    path = library()
    if path is None:
        where = f"below {SITE}={os.environ[SITE]}" if os.environ.get(SITE) else "here"
        raise EnvironmentFailure(
            f"Streams need ADIOS2's C library, and there is no {LIBRARY} {where}. Install it: {EXTRA}, or name the "
            f"prefix of a build with {SITE}."
        )
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise EnvironmentFailure(
            f"{path} does not load: {error}. Install PyPI's wheel: {EXTRA}, or name the prefix of a build with {SITE}."
        ) from error

    class Functions:
        """By name."""

    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, f"adios2_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(Functions, name, function)
    loaded.adios2_available_variables.restype = POINTER(c_void_p)
    loaded.adios2_available_variables.argtypes = (c_void_p, POINTER(c_size_t))
    Functions.available_variables = loaded.adios2_available_variables  # type: ignore[attr-defined]
    return Functions


def _free(address: Any) -> None:
    _libc().free(address)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (c_void_p,)
    libc.free.restype = None
    return libc


def _require_address(address: Any, path: Path) -> int:
    if not address:
        raise StreamLost(f"ADIOS2 could not open or use the stream {path.name} (its own words are in the ranks' log).")
    return int(address)


def _require_success(error: int, path: Path) -> None:
    if error:
        raise StreamLost(f"ADIOS2 failed on the stream {path.name} (its own words are in the ranks' log).")


if __name__ == "__main__":  # see require_transport
    with tempfile.TemporaryDirectory() as scratch:
        StreamWriter(Path(scratch, "stream"), readers=0, parameters={"DataTransport": sys.argv[1]}).close()
