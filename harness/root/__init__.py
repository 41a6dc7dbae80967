"""dlio-bench: how fast does deep-learning I/O run here, and what would make it faster?"""

from importlib.metadata import version

__version__ = version("dlio-bench")
