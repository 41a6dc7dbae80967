"""Every variant of every workload, for suites that run on each: workload, variant, and few but enough files."""

from dlio_bench.benchmarks.registry import WORKLOADS

ONE_EACH, MANY_EACH = 13, 3  # files of one sample, of many: more than a batch, and a middle one

VARIANTS = [
    (name, variant, ONE_EACH if make(True, "random").samples_per_file == 1 else MANY_EACH)
    for name, workload in WORKLOADS.items()
    for variant, make in workload.variants.items()
]
