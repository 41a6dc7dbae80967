"""Samples served to other ranks: whole or not there, whatever happens to the peer; nothing is left when it is over."""

import contextlib
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.harness.cluster import links
from dlio_bench.harness.cluster import peers as peers_module
from dlio_bench.harness.cluster.interfaces import LOOPBACK
from dlio_bench.harness.cluster.peers import MOST_UNPROVEN, Peers, Piece, Serving
from tests.processes import PATIENCE, open_files, until

pytestmark = pytest.mark.slow

TOKEN = b"of this job"
SIZES = [0, 1, 115_000, 5, 70_000, 6_000_000, 0, 33]  # bytes of the samples of the store


class Store(NamedTuple):
    """Samples in one file, one after another."""

    file: int
    content: bytes
    offsets: list[int]

    def piece(self, sample: int) -> Piece | None:
        if not 0 <= sample < len(self.offsets) - 1:
            return None
        return self.file, self.offsets[sample], self.offsets[sample + 1] - self.offsets[sample]

    def sample(self, sample: int) -> bytes:
        return self.content[self.offsets[sample] : self.offsets[sample + 1]]


def stored(path: Path, sizes: list[int]) -> Store:
    content = np.random.default_rng(7).bytes(sum(sizes))
    path.write_bytes(content)
    return Store(os.open(path, os.O_RDONLY), content, [0, *np.cumsum(sizes).tolist()])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = stored(tmp_path_factory.mktemp("store") / "samples", SIZES)
    yield made
    os.close(made.file)


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("peers-")]


@pytest.fixture(autouse=True)
def _nothing_is_left(store: Store) -> Iterator[None]:
    before = open_files()
    yield
    assert own_threads() == []
    assert open_files().items() <= before.items()  # what others have left may go meanwhile


def buffers(*lengths: int) -> list[memoryview]:
    return [memoryview(bytearray(length)) for length in lengths]


def served(answer: Callable[[int], Piece | None]) -> "closing[Serving]":
    return closing(Serving(answer, token=TOKEN))


def asking(*addresses: links.Address, patience: float = PATIENCE) -> "closing[Peers]":
    return closing(Peers(addresses, TOKEN, patience=patience))


@settings(max_examples=25, deadline=None)
@given(batches=st.lists(st.lists(st.integers(-2, len(SIZES) + 1), max_size=12), max_size=4))
def test_every_ask_is_answered_with_the_samples_that_are_there(store: Store, batches: list[list[int]]) -> None:
    with served(store.piece) as serving, asking(serving.address) as peers:
        asked: list[int] = []
        for samples in batches:
            outs = buffers(*(SIZES[sample] if 0 <= sample < len(SIZES) else 9 for sample in samples))
            here = [0 <= sample < len(SIZES) for sample in samples]
            assert peers.fetch(0, samples, outs) == here
            assert all(
                bytes(out) == store.sample(n) for out, n, is_here in zip(outs, samples, here, strict=True) if is_here
            )
            asked += samples
        assert peers.dead == set()
    kept = [sample for sample in asked if 0 <= sample < len(SIZES)]
    assert (serving.requests, serving.misses) == (len(asked), len(asked) - len(kept))
    assert serving.bytes == sum(SIZES[sample] for sample in kept)
    assert (serving.seconds > 0) == bool(asked)


def test_large_samples_arrive_whole(tmp_path: Path) -> None:
    size = 60_000_000
    pattern = np.random.default_rng(1).bytes(1_000_003)  # a prime, so that pages differ
    content = (pattern * 60)[:size]
    (tmp_path / "large").write_bytes(content)
    file = os.open(tmp_path / "large", os.O_RDONLY)
    [out] = buffers(size)
    with served(lambda _: (file, 0, size)) as serving, asking(serving.address) as peers:
        assert peers.fetch(0, [4], [out]) == [True]
    os.close(file)
    assert out == content


def test_a_sample_on_its_way_keeps_only_its_asker_waiting(store: Store) -> None:
    asked, arrived = threading.Event(), threading.Event()

    def answer(sample: int) -> Piece | None:
        if sample == 1:
            asked.set()
            assert arrived.wait(PATIENCE)
        return store.piece(sample)

    with served(answer) as serving, asking(serving.address) as peers, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(peers.fetch, 0, [3, 1, 7], buffers(5, 1, 33))
        assert asked.wait(PATIENCE)
        assert peers.fetch(0, [2, 99], buffers(SIZES[2], 1)) == [True, False]
        assert not waiting.done()
        arrived.set()
        assert waiting.result(PATIENCE) == [True, True, True]


def test_a_sample_of_another_length_is_not_there_and_the_peer_lives(store: Store) -> None:
    with served(store.piece) as serving, asking(serving.address) as peers:
        outs = buffers(5, SIZES[4] - 1, 33)
        assert peers.fetch(0, [3, 4, 7], outs) == [True, False, False]
        assert bytes(outs[0]) == store.sample(3)
        assert peers.fetch(0, [7, 3], [outs[2], outs[0]]) == [True, True]
        assert bytes(outs[2]) == store.sample(7)
        assert peers.dead == set()


def test_a_peer_that_breaks_off_in_mid_reply_is_dead(store: Store) -> None:
    def answer(sample: int) -> Piece | None:
        return (store.file, len(store.content) - 10, 1000) if sample == 5 else store.piece(sample)

    with served(answer) as serving, asking(serving.address, serving.address) as peers:
        assert peers.fetch(0, [3, 5, 7], buffers(5, 1000, 33)) == [True, False, False]
        assert peers.dead == {0}
        assert peers.fetch(0, [3], buffers(5)) == [False]
        assert peers.fetch(1, [3], buffers(5)) == [True]
    assert serving.requests == 2  # 3 and 3: 5 was never sent whole, and the dead rank was not asked again


PEER = """
import os, pickle, signal, sys
from dlio_bench.harness.cluster import peers
from dlio_bench.harness.cluster.peers import Serving

peers.SILENT_SECONDS = float(sys.argv[2])

file = os.open(sys.argv[1], os.O_RDONLY)


def answer(sample):
    if sample == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return file, 0, 5


serving = Serving(answer, token=b"of this job")
print(pickle.dumps(serving.address).hex(), flush=True)
sys.stdin.read()
"""


@contextmanager
def process(store: Store, silent: float = 0.05) -> "Iterator[tuple[subprocess.Popen[str], links.Address]]":
    """A rank of its own that serves 5 bytes for every sample but 1, which kills it. silent: its SILENT_SECONDS."""
    path = str(Path(f"/proc/self/fd/{store.file}").readlink())
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PEER, path, str(silent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        try:
            assert peer.stdout is not None
            yield peer, pickle.loads(bytes.fromhex(peer.stdout.readline()))
        finally:
            peer.kill()


def test_a_killed_process_is_dead_and_the_others_go_on(store: Store) -> None:
    with process(store) as (peer, address), served(store.piece) as serving:
        nobody = replace(serving.address, port=1)
        with asking(address, serving.address, nobody) as peers:
            assert peers.fetch(0, [0, 0, 1, 0], buffers(5, 5, 5, 5)) == [True, True, False, False]
            assert peer.wait(PATIENCE) == -signal.SIGKILL
            assert peers.dead == {0}
            assert peers.fetch(1, [3], buffers(5)) == [True]
            assert peers.fetch(2, [3], buffers(5)) == [False]
            assert peers.dead == {0, 2}


def test_a_stopped_process_is_given_up(store: Store) -> None:
    with process(store) as (peer, address), contextlib.ExitStack() as stack:
        # whoever has so little patience may give up a busy process too
        while not (peers := stack.enter_context(asking(address, patience=0.5))).fetch(0, [0], buffers(5))[0]:
            assert peer.poll() is None
        peer.send_signal(signal.SIGSTOP)
        os.waitpid(peer.pid, os.WUNTRACED)  # it may run on for a moment
        assert peers.fetch(0, [0], buffers(5)) == [False]
        assert peers.dead == {0}


def test_whoever_answers_must_know_the_token_and_be_the_rank_that_is_meant(store: Store) -> None:
    with served(store.piece) as serving, served(store.piece) as other:
        with closing(Peers([serving.address], b"of another job")) as peers:
            assert peers.fetch(0, [3], buffers(5)) == [False]
            assert peers.dead == {0}
        with asking(replace(serving.address, port=other.address.port)) as peers:
            assert peers.fetch(0, [3], buffers(5)) == [False]
            assert peers.dead == {0}
    assert (serving.requests, other.requests) == (0, 0)


def test_strangers_learn_nothing(store: Store) -> None:
    with served(store.piece) as serving, asking(serving.address) as peers:
        with socket.create_connection(("127.0.0.1", serving.address.port)) as stranger:
            stranger.settimeout(PATIENCE)
            stranger.sendall(bytes(16))
            assert len(stranger.recv(48, socket.MSG_WAITALL)) == 48
            stranger.sendall(bytes(32))
            assert stranger.recv(64) == b""
        with socket.create_connection(("127.0.0.1", serving.address.port)):  # says nothing at all
            assert peers.fetch(0, [3], buffers(5)) == [True]


@pytest.mark.parametrize(("said", "silent"), [(b"", 1e6), (b"?", 0.05)])
def test_hundreds_of_strangers_take_no_descriptor_from_a_rank(store: Store, said: bytes, silent: float) -> None:
    """Of those that say nothing it hears nothing, however long it would bear with them."""
    callers, soft = 400, resource.getrlimit(resource.RLIMIT_NOFILE)
    with process(store, silent) as (peer, address), asking(address) as peers, contextlib.ExitStack() as held:
        resource.prlimit(peer.pid, resource.RLIMIT_NOFILE, (256, 256))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft[0], min(callers + 500, soft[1])), soft[1]))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, soft)
        for _ in range(callers):
            held.enter_context(socket.create_connection(("127.0.0.1", address.port), PATIENCE)).sendall(said)
        assert peers.fetch(0, [0], buffers(5)) == [True]  # behind all of them
        # a thread closes its own a little later
        until(lambda: len(list(Path(f"/proc/{peer.pid}/fd").iterdir())) < MOST_UNPROVEN + 20)


def test_a_rank_that_asks_for_more_than_is_answered_at_once_asks_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(store.piece) as serving, asking(serving.address) as peers:
        monkeypatch.setattr(peers_module, "MOST_ASKED", 2)
        outs = buffers(5, 33, 1, 5, 7)
        assert peers.fetch(0, [3, 7, 99, 3, 1], outs) == [True, True, False, True, False]
        assert [bytes(out) for out in outs[:2]] == [store.sample(3), store.sample(7)]
        link = links.dial("127.0.0.1", serving.address.port)
        assert link is not None
        with link:
            assert links.introduce(link, TOKEN, serving.address.identity, 20)
            link.sendall((3).to_bytes(4, "little") + bytes(24))
            with contextlib.suppress(ConnectionResetError):  # broken off, before room was made for it
                assert link.recv(1) == b""


def test_somebody_who_only_listens_is_given_up() -> None:
    listener, address = links.listen(LOOPBACK)
    with listener, asking(address, patience=0.2) as peers:
        assert peers.fetch(0, [1], buffers(5)) == [False]
        assert peers.dead == {0}


def test_somebody_who_takes_anybody_is_not_believed() -> None:
    listener, address = links.listen(LOOPBACK)

    def pretend() -> None:
        with listener.accept()[0] as link:
            assert len(link.recv(16, socket.MSG_WAITALL)) == 16
            link.sendall(bytes(48))
            assert link.recv(1) == b""  # neither told a proof nor asked for anything

    with listener, asking(address) as peers, ThreadPoolExecutor(1) as pool:
        pretending = pool.submit(pretend)
        assert peers.fetch(0, [1], buffers(5)) == [False]
        pretending.result(PATIENCE)


def test_a_rank_keeps_a_few_connections_to_many_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MOST_IDLE", 3)
    with contextlib.ExitStack() as stack:
        servings = [stack.enter_context(served(store.piece)) for _ in range(12)]
        before = len(open_files())
        peers = stack.enter_context(asking(*(serving.address for serving in servings)))
        for rank in [*range(12), 11, 0]:
            assert peers.fetch(rank, [3], buffers(5)) == [True]
        # both ends; a server notices a little later
        until(lambda: len(open_files()) - before <= 2 * 3, missing="too many connections")
        assert peers.dead == set()


@pytest.mark.parametrize("busy", [False, True])
def test_a_rank_serves_a_few_connections_of_many_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Those that it closes are idle, and open again: nobody counts it as dead. busy: none is idle at first."""
    monkeypatch.setattr(peers_module, "MOST_SERVED", 3)
    idle, reply = threading.Event(), Serving._reply

    def replied(serving: Serving, link: socket.socket, samples: list[int]) -> None:
        reply(serving, link, samples)
        idle.wait(PATIENCE)

    monkeypatch.setattr(Serving, "_reply", replied)
    if not busy:
        idle.set()

    def threads() -> int:
        return sum(thread.name == "peers-serve" for thread in threading.enumerate())

    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(served(store.piece))
        clients = [stack.enter_context(asking(serving.address)) for _ in range(10)]
        for client in clients:
            assert client.fetch(0, [3], buffers(5)) == [True]
        assert not busy or threads() == 10
        idle.set()
        until(lambda: threads() <= 3, missing="too many connections are served")
        for client in clients:
            assert client.fetch(0, [3], buffers(5)) == [True]
            assert client.dead == set()
        until(lambda: threads() <= 3, missing="too many connections are served")


@pytest.mark.parametrize("first", ["server", "client"])
def test_closing_ends_what_is_in_progress(store: Store, first: str) -> None:
    """Either side may go first, while the other is in mid-reply; nobody hangs and nothing breaks."""
    started = threading.Barrier(5, timeout=PATIENCE)

    def ask() -> list[bool]:
        outs = buffers(*[SIZES[5]] * 4)
        assert peers.fetch(0, [5] * 4, outs) == [True] * 4
        started.wait()
        while all(found := peers.fetch(0, [5] * 4, outs)):
            assert all(bytes(out) == store.sample(5) for out in outs)
        return found

    serving = Serving(store.piece, token=TOKEN)
    peers = Peers([serving.address], TOKEN, patience=PATIENCE)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(ask) for _ in range(4)]
        started.wait()
        (serving if first == "server" else peers).close()
        assert not any(future.result(PATIENCE)[-1] for future in waiting)
    assert peers.dead == ({0} if first == "server" else set())
    serving.close()
    peers.close()
    serving.close()  # again is no error
    assert peers.fetch(0, [3], buffers(5)) == [False]


def test_closing_does_not_wait_for_idle_askers(store: Store) -> None:
    serving = Serving(store.piece, token=TOKEN)
    with asking(serving.address) as peers:
        assert peers.fetch(0, [3], buffers(5)) == [True]
        serving.close()
        assert own_threads() == []
        assert peers.fetch(0, [3], buffers(5)) == [False]


def test_closing_waits_for_threads_that_have_closed_their_connections(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, serve = threading.Event(), Serving._serve

    def served_slowly(serving: Serving, link: socket.socket) -> None:
        serve(serving, link)
        closed.set()
        time.sleep(0.2)

    monkeypatch.setattr(Serving, "_serve", served_slowly)
    serving = Serving(store.piece, token=TOKEN)
    with asking(serving.address) as peers:
        assert peers.fetch(0, [3], buffers(5)) == [True]
    assert closed.wait(PATIENCE)
    serving.close()
    assert own_threads() == []


def test_closing_wakes_who_waits_for_a_sample_that_never_comes(store: Store) -> None:
    asked, given_up = threading.Event(), threading.Event()

    def answer(_: int) -> Piece | None:
        asked.set()
        given_up.wait(PATIENCE)
        return None

    serving = Serving(answer, token=TOKEN)
    with asking(serving.address) as peers, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(peers.fetch, 0, [3], buffers(5))
        assert asked.wait(PATIENCE)
        peers.close()
        assert waiting.result(PATIENCE) == [False]
        given_up.set()
        serving.close()


def cpu_seconds() -> float:
    """Of this module's threads so far, by the first number of /proc/PID/task/TID/schedstat."""
    tasks = [thread.native_id for thread in threading.enumerate() if thread.name in own_threads()]
    return sum(int(Path(f"/proc/self/task/{task}/schedstat").read_text().split()[0]) for task in tasks) / 1e9


def test_idle_connections_cost_no_cpu(store: Store) -> None:
    together = threading.Barrier(8, timeout=PATIENCE)

    def answer(sample: int) -> Piece | None:
        together.wait()
        return store.piece(sample)

    with served(answer) as serving, asking(serving.address) as peers:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: peers.fetch(0, [3], buffers(5)), range(8)))
        assert len(own_threads()) == 9  # one accepts, one for each connection

        def idle() -> bool:
            busy = cpu_seconds()
            time.sleep(0.2)
            return cpu_seconds() == busy

        until(idle, missing="the threads of idle connections compute")
