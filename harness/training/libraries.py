"""Which TensorFlow a training takes, and whether it and Horovod are installed."""

from importlib.util import find_spec

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.environment import installed_version

TENSORFLOW = ((2, 16), (2, 19))  # from, and below: what Horovod 0.28.1 compiles against, and the package's extras allow
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
INSTALL = "Install it with `pip install 'dlio-bench[tensorflow]'` (Python 3.11 or 3.12), or use --compute emulate."


def require_libraries(exchange: str | None, what: str = "--compute train") -> None:
    """EnvironmentFailure where TensorFlow is missing or outside the pin, or Horovod is asked for and missing."""
    if find_spec("tensorflow") is None:
        raise EnvironmentFailure(f"{what} needs TensorFlow, which is not installed. {INSTALL}")
    version = next(filter(None, map(installed_version, DISTRIBUTIONS)), None)  # None: a distribution of another name
    low, high = TENSORFLOW
    if version is not None and not low <= tuple(int(part) for part in version.split(".")[:2]) < high:
        raise EnvironmentFailure(
            f"{what} works with TensorFlow {low[0]}.{low[1]} to {high[0]}.{high[1] - 1}, and {version} is "
            f"installed. {INSTALL}"
        )
    if exchange == "horovod" and find_spec("horovod") is None:
        raise EnvironmentFailure(
            "--exchange horovod: Horovod is not installed. In a clone, `scripts/install-horovod FOLDER` builds it for "
            "the TensorFlow of a virtual environment; or use --exchange mpi."
        )
