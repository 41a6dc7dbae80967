"""dlio-bench: how fast does deep-learning I/O run here, and what would make it faster?

For programs of your own: `dlio_bench.load` gives the samples of a dataset to a training. What stands in `__all__` stays
as docs/reference/library.md tells; everything else may change.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dlio_bench import errors

if TYPE_CHECKING:
    from dlio_bench.harness.library.decoding import Decoder
    from dlio_bench.harness.library.load import load
    from dlio_bench.harness.library.loader import Loader

__all__ = ["Decoder", "Loader", "__version__", "errors", "load"]
__version__ = version("dlio-bench")

_LATE = {"Decoder": "decoding", "Loader": "loader", "load": "load"}  # name -> its file: the command line needs none


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.harness.library.{_LATE[name]}"), name)
