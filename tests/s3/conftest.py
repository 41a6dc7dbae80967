"""One S3 server for all tests of a process; each test finds it without faults."""

from collections.abc import Iterator

import pytest

from dlio_bench.datagen import objects
from tests.contract import conftest
from tests.s3.store import Proxy, chosen, served

pytest_generate_tests = conftest.pytest_generate_tests


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with served(tmp_path_factory.mktemp("s3")) as proxy, chosen(proxy), pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "FIRST_WAIT", 0.001)
        patch.setattr(objects, "LONGEST_WAIT", 0.001)
        yield proxy


@pytest.fixture
def store(server: Proxy) -> Iterator[Proxy]:
    server.forget()
    yield server
    server.forget()
