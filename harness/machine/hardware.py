"""What a machine is built of that a measurement depends on, as the kernel tells it: network links and drives."""

from collections import Counter
from pathlib import Path

from dlio_bench.units import format_bytes

SYS = Path("/sys")
SECTOR = 512  # bytes: the unit of /sys/block/*/size, whatever the drive's own (Linux, Documentation/ABI/stable)


def first_line(path: Path) -> str:
    """The first line of one of the kernel's files; empty where it cannot be read, as speeds of links that are down."""
    try:
        return path.read_text(errors="replace").strip().partition("\n")[0]
    except OSError:
        return ""


def network_links(system: Path = SYS) -> list[str]:
    """The links that are up, with their rates where the driver tells them: 'eth0 10 Gbit/s', 'mlx5_0 200 Gb/sec ...'.

    Virtual links, such as bridges, are left out, and so are those of Ethernet that InfiniBand's devices carry.
    """
    found = [
        f"{port.parent.parent.name} {first_line(port / 'rate')}".strip()
        for port in sorted(system.glob("class/infiniband/*/ports/*"))
        if "ACTIVE" in first_line(port / "state")
    ]
    for link in sorted(system.glob("class/net/*")):
        if not (link / "device").exists() or first_line(link / "operstate") == "down":
            continue
        if (link / "device" / "infiniband").exists() and found:
            continue
        rate = first_line(link / "speed")  # Mbit/s, -1 where it is not known
        found.append(f"{link.name} {int(rate) / 1000:g} Gbit/s" if rate.isdigit() and int(rate) else link.name)
    return found


def drives(system: Path = SYS) -> list[str]:
    """The drives, like ones counted: '8 x SAMSUNG MZQL23T8, 3.84 TB', or by name where they tell no model."""
    found: Counter[str] = Counter()
    for drive in sorted(system.glob("block/*")):
        size = first_line(drive / "size")
        if (drive / "device").exists() and size.isdigit() and int(size):
            model = first_line(drive / "device" / "model") or drive.name
            found[f"{model}, {format_bytes(int(size) * SECTOR)}"] += 1
    return [name if count == 1 else f"{count} x {name}" for name, count in found.items()]
