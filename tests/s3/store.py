"""An S3 server (moto) of the tests, and a proxy before it that lets requests fail."""

import http.client
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until

BUCKET = "measured"
SECRET_ID, SECRET_KEY = "AKIATESTSECRETID", "test-secret-access-key"
SERVER = Path(__file__).parents[2] / ".venv-s3/server/bin/moto_server"
ERRORS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "404": (404, "NoSuchKey"),
    "403": (403, "AccessDenied"),
}


@dataclass
class Fault:
    """What happens to the next `times` requests for ranges of objects that have `name` in theirs.

    kind: a key of ERRORS; 'lost': the connection ends in mid-body; 'short': a body that is shorter than asked for, and
    says so; 'flipped': a bit of the middle byte is another.
    """

    kind: str
    times: int = 1
    name: str = ""


@dataclass
class Proxy:
    """Passes requests on to the server. lists, ranges: how many came; failed: how many met a fault.

    refused: the end of the names that nobody may write.
    """

    url: str = ""
    refused: str = ""
    faults: list[Fault] = field(default_factory=list)
    lists: int = 0
    ranges: int = 0
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def counted(self, method: str, path: str, ranged: bool) -> str | None:
        """The fault that this request meets, if any."""
        with self.lock:
            self.lists += method == "GET" and "list-type" in path
            if method == "PUT" and self.refused and path.endswith(self.refused):
                return "403"
            if not ranged:
                return None
            self.ranges += 1
            for fault in self.faults:
                if fault.times > 0 and fault.name in path:
                    fault.times -= 1
                    self.failed += 1
                    return fault.kind
            return None

    def forget(self) -> None:
        """No faults, and counts from 0."""
        with self.lock:
            self.faults.clear()
            self.refused = ""
            self.lists = self.ranges = self.failed = 0


@contextmanager
def served(folder: Path) -> Iterator[Proxy]:
    """A server with an empty bucket, behind a proxy."""
    log = (folder / "moto.log").open("w+")
    moto = subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", "0"], stdout=log, stderr=subprocess.STDOUT)
    try:
        pattern = re.compile(r"http://127\.0\.0\.1:(\d+)")
        until(lambda: pattern.search(Path(log.name).read_text()) is not None or moto.poll() is not None)
        match = pattern.search(Path(log.name).read_text())
        assert match is not None, Path(log.name).read_text()
        with _before(int(match[1])) as proxy:
            yield proxy
    finally:
        moto.terminate()
        moto.wait()
        log.close()


@contextmanager
def _before(port: int) -> Iterator[Proxy]:
    def connect() -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("PUT", f"/{BUCKET}")
            return connection.getresponse().status == 200
        except OSError:
            return False

    until(connect)
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._pass_on
            raise AttributeError(name)

        def _pass_on(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            ranged = "Range" in self.headers and self.command == "GET"
            kind = proxy.counted(self.command, self.path, ranged)
            if kind in ERRORS:
                status, code = ERRORS[kind]
                secret = f"<AWSAccessKeyId>{SECRET_ID}</AWSAccessKeyId>"  # as real stores repeat it
                self._answer(status, {}, f"<Error><Code>{code}</Code>{secret}</Error>".encode())
                return
            upstream = http.client.HTTPConnection("127.0.0.1", port)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            upstream.request(self.command, self.path, content or None, headers)
            response = upstream.getresponse()
            body = response.read()
            kept = {
                name: value
                for name, value in response.getheaders()
                if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server")
            }
            if self.command == "HEAD":
                kept["Content-Length"] = response.getheader("Content-Length") or "0"
            if kind == "flipped":
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            upstream.close()
            self._answer(response.status, kept, body[: len(body) // 2] if kind == "short" else body, cut=kind == "lost")

        def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if self.command != "HEAD" or "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="s3-proxy")
        thread.start()
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


def variables(proxy: Proxy) -> dict[str, str]:
    """What users set for this store."""
    return {
        "AWS_ACCESS_KEY_ID": SECRET_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_MAX_ATTEMPTS": "5",
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def chosen(proxy: Proxy) -> Iterator[Proxy]:
    """The variables of this process name the store."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables(proxy).items():
            patch.setenv(name, value)
        yield proxy
