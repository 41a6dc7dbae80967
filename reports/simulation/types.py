"""What the document of `dlio-bench simulate` holds, as types: files are checked against them. See `simulation`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dlio_bench.reports.document.typed import Amount, Count, Some

At = Annotated[dict[str, Count], Meta(min_length=1)]  # axis -> value
GRID = "simulation-grid"


class Case(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job. A grid whose axes are nodes says nodes in its cells. batch: samples a node and step; steps: of all
    epochs; step_time: where the time of a step comes from, missing where the system says a rate.
    """

    title: str
    samples: Some
    bytes: Some
    nodes: Some | None = None
    batch: Some
    epochs: Some
    steps: Some | None = None
    seed: Count
    step_time: str | None = None
    simulated_nodes: Some | None = None


class System(Struct, frozen=True, kw_only=True):
    """tiers: capacity by name, without the tiers that are an axis; estimated: numbers that no source gives."""

    name: str
    tiers: dict[str, Count]
    estimated: list[str] = []


class Axis(Struct, frozen=True):
    """Values are numbers of nodes, or bytes of a tier."""

    name: str
    values: Annotated[list[Count], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """ValueError for a value that is listed twice."""
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"a value of {self.name} is listed twice")


class Cell(Struct, frozen=True):
    """A combination of the axes' values."""

    at: At
    nodes: Some
    steps: Some
    simulated_nodes: Some


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A policy in a case. seconds: None where it does not apply, for the reason; stall_seconds: how long a node waits,
    in the mean; bytes: read from each tier, from other nodes (remote) and from the PFS (pfs); over_bound: seconds /
    lower bound - 1, and the same as the published simulator counts the readers of the PFS, for its scenarios;
    pfs_in_steps: steps read the PFS, so that their time depends on pfs_clients.
    """

    policy: str
    at: At | None = None
    seconds: Annotated[float, Meta(gt=0)] | None
    stall_seconds: Amount | None
    bytes: dict[str, Count]
    over_bound: float | None
    pfs_in_steps: bool
    reason: str | None
    over_bound_as_published: float | None = None

    def __post_init__(self) -> None:
        """ValueError for a policy that does not apply without a reason, or one that does without its distance."""
        if (self.seconds is None) != (self.over_bound is None) or (self.seconds is None and self.reason is None):
            raise ValueError("seconds, over_bound and reason contradict each other")

    @property
    def elapsed_seconds(self) -> float:
        """Seconds; 0 where the policy does not apply."""
        return self.seconds or 0.0

    @property
    def grid_cell(self) -> dict[str, int]:
        """The cell of a grid that it is at; of one case, nowhere."""
        return self.at or {}


class Accesses(Struct, frozen=True, kw_only=True):
    """How often a node reads each sample. histogram: samples read 0, 1, ... times; expected: the same, of the binomial
    distribution; reads: of the node in an epoch; mean: times that a sample is read; often, expected_often: samples read
    more than (1 + delta) times the mean. See access_frequency.
    """

    node: Count
    reads: Some
    delta: Amount
    histogram: Annotated[list[Count], Meta(min_length=2)]
    expected: list[Amount]
    mean: Amount
    often: Count
    expected_often: Amount

    def __post_init__(self) -> None:
        """ValueError where the two distributions are not of the same numbers."""
        if len(self.histogram) != len(self.expected):
            raise ValueError("histogram and expected have not the same length")


class Simulation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One case (kind simulation), or every cell of a what-if grid. pfs_clients: how readers share the parallel file
    system. axes: across, down, and one map a value; cells: every combination, the last axis fastest.
    """

    schema: Literal["dlio-bench/simulation/1"]
    kind: Literal["simulation", "simulation-grid"]
    version: str
    command: list[str]
    case: Case
    system: System
    pfs_clients: Literal["conserved", "worst", "published"]
    axes: Annotated[list[Axis], Meta(min_length=1, max_length=3)] = []
    cells: Annotated[list[Cell], Meta(min_length=1)] = []
    rows: Annotated[list[Row], Meta(min_length=1)]
    accesses: Accesses | None = None

    def __post_init__(self) -> None:
        """ValueError where what a grid or a single case needs is missing."""
        case = self.case
        if self.kind == GRID:
            if not self.axes or not self.cells or not all(row.at for row in self.rows):
                raise ValueError("a grid needs axes, cells, and in each row the cell it is at")
        elif None in (case.nodes, case.steps, case.simulated_nodes):
            raise ValueError("case needs nodes, steps and simulated_nodes")
