"""The faults made by hand still fit the code: a fault that stands nowhere shows nothing."""

from tests.power.check import FAULTS, ROOT, home


def test_every_fault_has_its_place_in_the_code_and_its_tests() -> None:
    for fault in FAULTS:
        assert home(ROOT, fault).is_file()
        assert all((ROOT / test.partition("::")[0]).is_file() for test in fault.tests), fault
