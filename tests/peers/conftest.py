"""Classes of the suite of readers say here too on which workloads they run."""

from tests.contract import conftest

pytest_generate_tests = conftest.pytest_generate_tests
