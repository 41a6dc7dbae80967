"""A headless Chromium that tests ask through its DevTools pipe: pages, media, widths, scripts, what went wrong.

The pipe carries JSON messages that end in a zero byte, https://chromedevtools.github.io/devtools-protocol/.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.needs import BROWSERS
from tests.processes import PATIENCE, until

OPTIONS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--no-first-run", "--remote-debugging-pipe", "--hide-scrollbars",
]  # fmt: skip
# Every figure that is in no closed fold is drawn.
READY = """new Promise((done) => { const wait = () => window.Plotly && [...document.querySelectorAll(".plot")]
  .every((plot) => plot.closest("details:not([open])") || plot.querySelector(".main-svg")) ? done(true)
  : setTimeout(wait, 20); wait(); })"""


class Browser:
    """One Chromium with one tab. `complaints`: what its console said and what scripts threw; `requests`: addresses."""

    def __init__(self, profile: Path) -> None:
        chromium = next(filter(None, map(shutil.which, BROWSERS)))
        asked, self._write = _pipe()
        self._read, answers = _pipe()
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        pipes = (os.POSIX_SPAWN_DUP2, asked, 3), (os.POSIX_SPAWN_DUP2, answers, 4)
        words = [chromium, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self._process = os.posix_spawn(chromium, words, os.environ, file_actions=(*null, *pipes))
        os.close(asked)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._loaded: set[str] = set()  # documents
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        until(self._tabs, missing="the browser has no tab")
        self._session = self.ask("Target.attachToTarget", targetId=self._tabs()[0], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        os.close(self._read)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer of the browser to one request. AssertionError if it refuses."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number, end = self._number, time.monotonic() + PATIENCE
        while True:
            answer = self._next(end)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def open(
        self, page: Path | str, *, width: int = 1280, height: int = 800, dark: bool = False, drawn: bool = True
    ) -> None:
        """Open a file or an address and wait until its figures are drawn, if `drawn`, else until it is loaded."""
        self.complaints, self.requests = [], []
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.prefer(dark=dark)
        opened = self.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())["loaderId"]
        end = time.monotonic() + PATIENCE
        while opened not in self._loaded:  # another one may be through only now: the first, which is empty
            self._note(self._next(end))
        if drawn:
            assert self.run(READY) is True

    def prefer(self, *, dark: bool) -> None:
        """Set the colour scheme that the user prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, or what its promise comes to."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.ask("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as PNG."""
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=whole, **(self._clip() if whole else {}))
        path.write_bytes(base64.b64decode(data["data"]))

    def printed(self, path: Path) -> None:
        """Write the printed page as PDF."""
        path.write_bytes(base64.b64decode(self.ask("Page.printToPDF", preferCSSPageSize=True)["data"]))

    def _tabs(self) -> list[str]:
        return [each["targetId"] for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page"]

    def _clip(self) -> dict[str, Any]:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _next(self, end: float) -> dict[str, Any]:
        """The next message. AssertionError behind `end`, however many others come until then."""
        assert time.monotonic() < end, "the browser does not answer"
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, none of them the 3 or 4 where the browser looks for its own."""
    ends = os.pipe()
    moved = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 10), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 10)
    for end in ends:
        os.close(end)
    return moved
