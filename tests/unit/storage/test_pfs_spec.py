"""The description of an emulated file system: read from the command line, told in words."""

from dlio_bench.harness.storage.pfs.spec import EXAMPLE, PfsSpec, describe, parse_spec

WHOLE = PfsSpec(400e6, 250e6, 1e-3, 0.3e-3, 2_000_000_000, 800e6, opens=2000.0)


def test_all_keys() -> None:
    assert parse_spec(EXAMPLE) == WHOLE
    assert parse_spec(EXAMPLE.replace(",", " , ").replace("=", " = ")) == WHOLE


def test_only_bandwidth_is_needed() -> None:
    assert parse_spec("bandwidth=1GiB/s") == PfsSpec(2.0**30)
    assert parse_spec("bandwidth=unlimited,open=0") == PfsSpec(None)


def test_words() -> None:
    assert describe(WHOLE) == (
        "400 MB/s shared by all nodes, 250 MB/s a node, 1 ms an open, 2000 opens/s shared by all nodes, "
        "300 µs a request of 1 MiB, a client cache of 2 GB a node at 800 MB/s"
    )
    assert describe(PfsSpec(None)) == "unlimited bandwidth, no client cache"
