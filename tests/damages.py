"""What is wrong with a dataset, for suites that write one."""

from dlio_bench.datagen.dataset import Dataset, missing_or_resized
from dlio_bench.datagen.verify import auxiliary_damage, damage


def verify_files(dataset: Dataset) -> list[str]:
    """One line for each damaged file, naming it and its first damaged field; empty when every byte is as written."""
    problems = missing_or_resized(dataset)
    if problems:
        return problems
    found = (damage(dataset, number) for number in range(len(dataset.manifest.files)))
    return [problem for problem in found if problem] + auxiliary_damage(dataset)
