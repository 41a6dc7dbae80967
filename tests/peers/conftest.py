"""Classes of the suite of readers say here too on which workloads they run."""

from tests.contract.conftest import pytest_generate_tests as pytest_generate_tests
