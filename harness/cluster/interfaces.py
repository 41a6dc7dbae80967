"""Network interfaces: on which a rank serves samples to ranks of other hosts. IPv4 alone.

No host name is resolved, since a resolver can hang: hosts tell each other their addresses.
"""

import fcntl
import math
import os
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from dlio_bench.errors import UsageError, one_of
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.cluster.variables import INTERFACE

LOOPBACK = "127.0.0.1"
NET = Path("/sys/class/net")
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B  # netdevice(7): the IPv4 address of an interface, and its network mask
_DISCARD = 9  # a port, to which nothing is sent

Addresses = Mapping[str, IPv4Interface]


class ServingPlace(Struct, frozen=True):
    """Where a rank serves samples: an address of its host, and the interface that has it."""

    host: str
    interface: str
    address: str


def addresses() -> dict[str, IPv4Interface]:
    """This host's interfaces but loopback, with their IPv4 addresses and networks; the fastest first, unknown last."""
    by_speed: list[tuple[float, str, IPv4Interface]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                # sin_addr of the sockaddr_in after the 16 bytes of the name
                host, mask = (
                    socket.inet_ntoa(fcntl.ioctl(asking, request, struct.pack("256s", name.encode()))[20:24])
                    for request in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:  # no IPv4 address there
                continue
            if not host.startswith("127."):
                by_speed.append((-_speed(NET / name / "speed"), name, IPv4Interface(f"{host}/{mask}")))
    return {name: address for _, name, address in sorted(by_speed, key=lambda entry: entry[0])}


def _speed(file: Path) -> float:
    try:
        return float(file.read_text())  # Mbit/s; -1 where the driver does not know, an error where the link is down
    except (OSError, ValueError):
        return -math.inf


def require_named() -> None:
    """UsageError if the interface that `--interface` or its variable names has no IPv4 address on this host."""
    name = os.environ.get(INTERFACE)
    if name and name not in (here := addresses()):
        raise missing(name, host_name(), list(here))


def missing(name: str, host: str, known: Sequence[str]) -> UsageError:
    """The error for an interface that a host does not have."""
    there = [interface for interface in known if interface != "lo"]
    return UsageError(
        f"--interface {name} (or {INTERFACE}): host {host} has no network interface '{name}' with an IPv4 address. "
        f"{f'It has {one_of(there)}' if there else 'It has loopback alone'}; name one that all hosts have."
    )


class RankComm(Protocol):
    """What is asked of a communicator, ours or MPI's own."""

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    def allgather(self, value: Any, /) -> list[Any]:
        """Everybody's value, by rank."""
        ...


def serving(comm: RankComm) -> list[ServingPlace]:
    """Where each rank serves samples, by rank: on the interface that `--interface` names, else on that which leads to
    the first host that is not the rank's own. Loopback where all ranks share a host. All ranks call this together.
    """
    mine = addresses()
    everybody: list[tuple[str, Addresses]] = comm.allgather((network(), mine))
    other = next((theirs for network, theirs in everybody if network != everybody[comm.rank][0]), None)
    name, address = ("lo", LOOPBACK) if other is None else _choose_interface(mine, other)
    return comm.allgather(ServingPlace(host_name(), name, address))


def _choose_interface(mine: Addresses, other: Addresses) -> tuple[str, str]:
    """Name and address of the interface through which the kernel reaches a host, loopback's where none does.

    A host has several addresses. Those on a network of ours come first, by our interface's speed, then whatever the
    kernel has a route to. Addresses that are ours too, such as those of containers' bridges, lead nowhere else.
    """
    here = {address.ip for address in mine.values()}
    there = [address.ip for address in other.values() if address.ip not in here]
    near = [ip for address in mine.values() for ip in there if ip in address.network]
    named = os.environ.get(INTERFACE)
    if named and named in mine:
        return named, str(mine[named].ip)
    for destination in [*near, *there]:
        source = _source(destination)
        if source is not None:
            name = next((name for name, address in mine.items() if str(address.ip) == source), "")
            return name, source
    return "lo", LOOPBACK


def _source(destination: IPv4Address) -> str | None:
    """The address from which the kernel would send to `destination`; None without a route. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((str(destination), _DISCARD))
        except OSError:
            return None
        return str(asking.getsockname()[0])


def network() -> str:
    """The same for two processes exactly when they reach each other by loopback: one kernel, one network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return secrets.token_hex(8)  # unknown: equal to no other process's
