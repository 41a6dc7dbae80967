"""The types of a study, as its TOML file has them, and of what `dlio-bench reproduce` says of studies."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from dlio_bench.reports.document.typed import Count

Verdict = Literal[
    "reproduced", "within 25 %", "effect seen, size differs", "undecided", "not seen", "not testable here"
]
REPRODUCED: Verdict = "reproduced"
WITHIN: Verdict = "within 25 %"
TOLERANCE = 0.25  # of the published figures, of all claims alike: how far ours may be off, if it is said how far
SEEN: Verdict = "effect seen, size differs"
UNDECIDED: Verdict = "undecided"
NOT_SEEN: Verdict = "not seen"
UNTESTABLE: Verdict = "not testable here"
VERDICTS = (REPRODUCED, WITHIN, SEEN, UNDECIDED, NOT_SEEN, UNTESTABLE)
Outcome = Literal[  # of a study: as of a claim, but also of one that was tested in part, and of a command that failed
    Verdict, "reproduced in part", "failed"
]
IN_PART: Outcome = "reproduced in part"
FAILED: Outcome = "failed"
ClaimKind = Literal["measured", "consistent with its inputs", "recomputed model", "by construction"]
MEASURED: ClaimKind = "measured"
KINDS: dict[ClaimKind, str] = {
    MEASURED: "what was timed or trained here could have come out otherwise",
    "consistent with its inputs": "rates or step times come from the publication whose figure is compared",
    "recomputed model": "a published model is computed again, or a published table added up",
    "by construction": "no other figure is possible where the code is right",
}
Kind = Literal["generate", "run", "simulate", "couple"]
SizeName = Literal["smoke", "laptop", "site"]
Need = Literal["adios2", "fuse", "tensorflow"]
Take = Literal["last", "first", "least", "greatest", "growth", "least growth"]

Word = Annotated[str, Meta(min_length=1)]
FolderName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Value: TypeAlias = bool | int | float | str


class _Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; a key that it does not know is refused."""


class Run(_Table, frozen=True, kw_only=True):
    """A command of dlio-bench: `COMMAND SUBJECT --OPTION VALUE`. options: true is an option without a value.

    A value "@NAME" is the folder of the run of that name, such as the dataset that a `generate` makes.
    """

    name: FolderName
    command: Kind = "run"
    subject: Annotated[str, Meta(pattern="^([^-].*)?$")] = ""
    options: dict[str, Value | list[Value]] = {}


class Published(_Table, frozen=True, kw_only=True):
    """A published figure. at: where it was measured; of, over: what it is the ratio of; source: where it stands, if
    elsewhere than the claim's others.
    """

    value: float
    at: str = ""
    of: float | None = None
    over: float | None = None
    source: Word | None = None


class Effect(_Table, frozen=True, kw_only=True):
    """The interval that our figure lies in, whatever its size, where the effect is there."""

    above: float | None = None
    below: float | None = None


class Claim(_Table, frozen=True, kw_only=True):
    """What is compared: metric [/ per] of an arm [/ the same of the arm `over`], at each value of the attribute
    `along`.

    take: which of these figures is compared, or growth: the last over the first; least growth: the least of all steps
    from one to the next. kind: what an agreement is worth, as `KINDS` says. published_as: whether these are figures,
    or bounds, or of another span than ours, or no figures, so that the direction alone is compared.
    """

    name: Word
    kind: ClaimKind
    metric: Word
    per: Word | None = None
    arm: Word
    over: Word | None = None
    along: Word = "nodes"
    take: Take = "last"
    published: Annotated[tuple[Published, ...], Meta(min_length=1)]
    published_as: Literal["value", "at most", "at least", "direction"] = "value"
    source: Word
    effect: Effect


class Size(_Table, frozen=True, kw_only=True):
    """How a study is carried out: about how long it takes on two cores, its data, and options of its runs.

    runs: which of them; None: all. options: of all these runs; run: of one of them, by its name.
    """

    time: Word
    space: Word
    runs: tuple[Word, ...] | None = None
    options: dict[str, Value | list[Value]] = {}
    run: dict[str, dict[str, Value | list[Value]]] = {}


class Study(_Table, frozen=True, kw_only=True):
    """A study. untestable: why no machine at hand can test it; differs: what is not as it was published.

    options: of all its runs; arm: for each name what results of that arm are, and which run makes them; table: arms
    whose figures are printed, each the sum of its column.
    """

    title: Word
    shows: Word
    source: Word
    differs: str = ""
    untestable: str = ""
    needs: tuple[Need, ...] = ()
    options: dict[str, Value | list[Value]] = {}
    size: dict[SizeName, Size] = {}
    run: tuple[Run, ...] = ()
    arm: dict[str, dict[str, Value]] = {}
    table: dict[str, dict[str, tuple[float, ...]]] = {}
    claim: tuple[Claim, ...] = ()


class Point(Struct, frozen=True, kw_only=True):
    """Our figure at one place. low, high: its interval, or the range of the trials where these are too few; of, over:
    the medians that it is the ratio of.
    """

    at: str
    value: float
    low: float
    high: float
    of: float | None = None
    over: float | None = None


class Compared(Struct, frozen=True, kw_only=True):
    """A claim with its verdict. kind: None in documents that did not tell it yet; value: ours, low to high; band: where
    ours counts, if it can; off: how far it is from the published figures, as a share of them.

    grown: of a growth, the published one; `published` and `points` then are what grows.
    """

    name: str
    kind: ClaimKind | None = None
    what: str
    published: list[Published]
    published_as: str
    source: str
    grown: float | None = None
    band: tuple[float | None, float | None] | None
    points: list[Point] = []
    value: float | None = None
    low: float | None = None
    high: float | None = None
    off: float | None = None
    verdict: Verdict
    why: str


class Answer(Struct, frozen=True, kw_only=True):
    """What came of a study. outcome: in one word; verdict: how far off, if that is all, and the count of tested claims
    where these are not all.

    failure: why a command left no results, with its last message; marks: of the results that were compared.
    """

    study: str
    title: str
    shows: str
    source: str
    differs: str = ""
    outcome: Outcome
    verdict: str
    why: str
    failure: str = ""
    claims: list[Compared] = []
    marks: list[str] = []
    files: list[str] = []
    status: Count = 0


class Skipped(Struct, frozen=True, kw_only=True):
    """A file that was not compared. damaged: it should hold a result, and does not."""

    file: str
    why: str
    damaged: bool


class Document(Struct, frozen=True, kw_only=True):
    """What `dlio-bench reproduce` says of all studies. kinds: verdicts of the claims of each kind, counted.

    against: the results that were judged, if they are a site's; skipped: files among them.
    """

    schema: Literal["dlio-bench/reproduce/1"] = "dlio-bench/reproduce/1"
    kind: Literal["reproduce"] = "reproduce"
    version: str
    size: SizeName | None
    against: str | None = None
    command: list[str]
    host: dict[str, Any] = field(default_factory=dict)
    kinds: dict[ClaimKind, dict[Verdict, Count]] = {}
    studies: list[Answer]
    skipped: list[Skipped] = []
