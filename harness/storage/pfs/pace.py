"""An emulated slow object store: what each request for a range costs a node, waited for in the process that asks.

The links, latencies and waits are those of an emulated file system (`node`), of which a store has no client cache. A
request opens its object anew, so that each takes the latency of an open, and that of its started MiB.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs.bucket import SharedLink
from dlio_bench.harness.storage.pfs.emulation import FOLDER
from dlio_bench.harness.storage.pfs.node import REQUEST
from dlio_bench.harness.storage.pfs.spec import PfsSpec, queue_of

SHARED = "bucket"


class Pace:
    """Holds requests of one process up. Threads share it; the links' files are shared by the processes of a machine."""

    def __init__(
        self,
        spec: PfsSpec,
        node: SharedLink,
        shared: SharedLink,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        number: int = 0,
    ) -> None:
        """node, number: its own link, and which node it is."""
        self._queue = queue_of(spec, number)
        self._spec, self._node, self._shared = spec, node, shared
        self._clock, self._sleep = clock, sleep
        self._late = threading.local()  # seconds that a thread's last wait took too long

    @contextmanager
    def request(self, count: int) -> Iterator[None]:
        """Around a request for `count` bytes, which is made meanwhile: it takes the emulated time, or its own."""
        now, spec = self._clock(), self._spec
        credit = getattr(self._late, "seconds", 0.0)
        link = self._node.reserve(count, now, credit)
        turn = link.end - count / (spec.per_node or math.inf)
        if turn > now:
            self._until(turn)
            now = self._clock()
            credit = now - turn
        network = self._shared.reserve(count, now, credit, self._queue)
        yield
        asked = self._clock()
        end = max(now, link.end, self._shared.wait(network, self._until))
        due = end + spec.open_seconds + -(-count // REQUEST) * spec.request_seconds
        self._until(due)
        self._late.seconds = max(self._clock() - max(due, asked), 0.0)

    def _until(self, moment: float) -> None:
        if (left := moment - self._clock()) > 0:
            self._sleep(left)


@contextmanager
def links(nodes: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Files of the links of virtual nodes, and of the link that they share, for as long as a job runs."""
    with temp_folder(FOLDER) as folder:
        own = tuple(str(folder / f"link-{node}") for node in range(nodes))
        for path in own:
            SharedLink.create(Path(path))
        SharedLink.create(folder / SHARED, nodes)
        yield own, str(folder / SHARED)


@contextmanager
def opened(spec: PfsSpec, nodes: Sequence[str], number: int, shared: str) -> Iterator[Pace]:
    """The pace of a rank of node `number`, by the files of `links`. EnvironmentFailure where they are gone."""
    with ExitStack() as stack:
        own = stack.enter_context(closing(SharedLink(Path(nodes[number]), spec.per_node)))
        common = stack.enter_context(closing(SharedLink(Path(shared), spec.bandwidth)))
        yield Pace(spec, own, common, number=number)
