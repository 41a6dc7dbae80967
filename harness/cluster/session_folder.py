"""The files of Open MPI for a job on one host, in folders that go with the job: killed daemons and ranks leave them.

On several hosts they stay where Open MPI puts them: a folder of this host would not be there on the others.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.machine.temp_folders import temp_folder

SESSION_FOLDER = "dlio-bench-session-"
_OF_DAEMONS = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")  # Open MPI 5 and 4
_OF_RANKS = "OMPI_MCA_btl_vader_backing_directory"  # the memory that they share; of both versions


@contextmanager
def in_session_folder(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment for a launcher on this host. What the user has set stays. OSError."""
    with temp_folder(SESSION_FOLDER) as session, temp_folder(SESSION_FOLDER, SHARED_MEMORY) as shared:
        yield dict.fromkeys(_OF_DAEMONS, str(session)) | {_OF_RANKS: str(shared)} | dict(env)
