"""Where a rank serves samples: one address of its host, on the way to the first other host; loopback alone on one."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import interfaces, links
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.cluster.interfaces import LOOPBACK, addresses, require_named, serving

FAST, SLOW, BRIDGE = "10.0.0.3", "10.1.0.1", "172.17.0.1"
WIRED = {"slow": SLOW, "fast": FAST, "docker0": BRIDGE}


class OfTwo(Solo):
    """The first of two ranks, of which the other one has said these things already."""

    rank, size = 0, 2

    def __init__(self, *others: Any) -> None:
        self._others = list(others)

    def allgather(self, value: Any) -> list[Any]:
        return [value, self._others.pop(0)]


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose interfaces are in networks of 65536 addresses, with a route from each to its own network."""
    names = ["lo", "slow", "dark", "fast", "bare", "docker0"]
    hosts = {"lo": "127.0.0.1", "dark": "10.2.0.2", **WIRED}
    for name, speed in {"slow": "1000", "fast": "200000", "dark": "-1"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(f"{speed}\n")

    def ioctl(_: object, request: int, asked: bytes) -> bytes:
        name = asked.rstrip(b"\0").decode()
        if name not in hosts:
            raise OSError(99, "no address")
        answer = hosts[name] if request == interfaces._SIOCGIFADDR else "255.255.0.0"
        return asked[:20] + socket.inet_aton(answer) + asked[24:]

    def source(destination: object) -> str | None:
        return next((host for host in hosts.values() if host.split(".")[:2] == str(destination).split(".")[:2]), None)

    monkeypatch.setattr(interfaces.fcntl, "ioctl", ioctl)
    monkeypatch.setattr(interfaces, "_source", source)
    monkeypatch.setattr(interfaces, "NET", tmp_path)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names)))
    return tmp_path


def test_faster_interfaces_come_first(net: Path) -> None:
    assert list(addresses()) == ["fast", "slow", "dark", "docker0"]


def other(**at: str) -> tuple[str, Mapping[str, interfaces.IPv4Interface]]:
    return "of another kernel", {name: interfaces.IPv4Interface(f"{host}/16") for name, host in at.items()}


@pytest.mark.parametrize(
    ("there", "named", "expected"),
    [
        ({"eth0": "10.1.0.9"}, None, SLOW),
        ({"eth0": "10.1.0.9", "eth1": "10.0.0.9"}, None, FAST),
        ({"docker0": BRIDGE, "eth0": "10.1.0.9"}, None, SLOW),  # both hosts have such a bridge
        ({"eth0": "10.1.0.9", "eth1": "10.0.0.9"}, "slow", SLOW),
        ({"eth0": "192.168.7.7"}, None, LOOPBACK),  # no way
    ],
)
def test_a_rank_serves_where_the_first_other_host_is_reached(
    net: Path, monkeypatch: pytest.MonkeyPatch, there: dict[str, str], named: str | None, expected: str
) -> None:
    if named is not None:
        monkeypatch.setenv("DLIO_BENCH_INTERFACE", named)
    place, _ = serving(OfTwo(other(**there), None))
    assert place.address == expected


def test_ranks_of_one_host_serve_on_loopback_alone() -> None:
    [place] = serving(Solo())
    listener, address = links.listen(place.address)
    with listener:
        assert listener.getsockname()[0] == address.host == LOOPBACK


def test_an_interface_that_is_not_there_is_named_with_those_that_are(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLIO_BENCH_INTERFACE", "slow")
    require_named()
    monkeypatch.setenv("DLIO_BENCH_INTERFACE", "bare")
    with pytest.raises(UsageError, match=r"interface 'bare'.*It has fast, slow, dark or docker0"):
        require_named()
