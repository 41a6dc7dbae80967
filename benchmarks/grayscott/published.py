"""What was published of the Gray-Scott workflow: settings, range of the fields, slow-downs; with sources."""

from msgspec import Struct

EXAMPLE = "ornladios/ADIOS2-Examples @86ed110, source/cpp/gray-scott"
DECK = "A. Gainaru, Workshop on Advancing Neural Network Training, NeurIPS, 16 December 2023"


class Settings(Struct, frozen=True):
    """One simulation. size: cells of an edge; diffusion_u, diffusion_v, feed, kill: Du, Dv, F, k of the equations.

    dt: length of a time step. noise: largest disturbance of du/dt. steps: of the run; plotgap: steps an output.
    """

    size: int
    diffusion_u: float
    diffusion_v: float
    feed: float
    kill: float
    dt: float
    noise: float
    steps: int
    plotgap: int

    @property
    def outputs(self) -> int:
        """States that the run gives out: after each step whose number is a multiple of `plotgap`."""
        return self.steps // self.plotgap

    @property
    def output_bytes(self) -> int:
        """Bytes of one state: two fields of float64."""
        return 2 * 8 * self.size**3


PUBLISHED = Settings(
    size=64, diffusion_u=0.2, diffusion_v=0.1, feed=0.01, kill=0.05, dt=2.0, noise=1e-7, steps=1000, plotgap=10
)
"""simulation/settings-files.json of EXAMPLE. The defaults in its settings.cpp are others, and are not used with it."""

CUBE_HALF = (
    6  # cells: the initial cube is [L/2 - 6, L/2 + 6) along each axis (EXAMPLE, simulation/gray-scott.cpp:84-107)
)
CUBE_U, CUBE_V = 0.25, 0.33  # in it; elsewhere u = 1, v = 0 (as above)

RANGE_U = (0.0908, 1.0)  # least and greatest over the 100 outputs of PUBLISHED: bpls in EXAMPLE's README
RANGE_V = (0.0, 0.6748)


class Slowdown(Struct, frozen=True):
    """A published slow-down: elapsed coupled / elapsed alone."""

    coupling: str  # "files" or "stream"
    consumers: int
    ratio: float
    bound: bool  # whether the ratio is an upper bound: 'less than 3 %'
    words: str


SLOWDOWNS = (
    Slowdown("files", 1, 1.5, False, "1.5x slower: congestion of the file system"),
    Slowdown("stream", 1, 1.03, True, "less than 3 % slower than separate runs"),
    Slowdown("stream", 3, 1.05, True, "less than 5 % slower, 3 models"),
)
"""DECK. It names neither sizes nor file system nor network, and the data behind its plots are not public."""
