"""What a CI job takes from a command that judges: an exit status, JUnit XML, and Markdown for the job's summary."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Struct

from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground.folders import require_file

if TYPE_CHECKING:
    from dlio_bench.reports.document.types import Result
    from dlio_bench.reports.judging.judgement import Judgement

ACCEPTANCE = "acceptance"
Junit: TypeAlias = Annotated[
    Path | None,
    opt.file("also write JUnit XML: a case for each result with its limits; without limits, one for each check"),
]
Markdown: TypeAlias = Annotated[Path | None, opt.file("also write Markdown, for the summary of a CI job")]
Require: TypeAlias = Annotated[
    str | None,
    opt.choice(
        "CLASS",
        "acceptance: end with status 1 if the class is not ACCEPTANCE, as of EXPLORE with every limit held",
        (ACCEPTANCE,),
    ),
]


class Outcome(Struct, frozen=True):
    """The options of these types."""

    junit: Path | None = None
    markdown: Path | None = None
    require: str | None = None

    def require_files(self) -> None:
        """UsageError for a file that cannot be written: asked before anything is measured."""
        for option, path in (("--junit", self.junit), ("--markdown", self.markdown)):
            if path is not None:
                require_file(path, "junit.xml" if option == "--junit" else "summary.md", option)

    def write(self, results: "Sequence[Result]", judgement: "Judgement | None") -> None:
        """The files that were asked for. Without a judgement JUnit has the checks of the results."""
        from dlio_bench.reports.document.files import write_whole
        from dlio_bench.reports.export import junit, measures
        from dlio_bench.reports.run import markdown

        if self.junit is not None:
            shown = (
                junit.of_results(measures.of_runs(results))
                if judgement is None
                else junit.of_judgement(judgement, acceptance=self.require == ACCEPTANCE)
            )
            write_whole(self.junit, shown.encode())
        if self.markdown is not None:
            write_whole(self.markdown, markdown.render(results, judgement).encode())

    def status(self, judgement: "Judgement") -> int:
        """The exit status of a judgement. Says on stderr what --require asks for and is not there."""
        from dlio_bench.reports.judging.judge import required_status

        if self.require == ACCEPTANCE and judgement.class_ != "ACCEPTANCE":
            print(f"dlio-bench: --require acceptance: the class is {judgement.class_}.", file=sys.stderr)
        return required_status(judgement, acceptance=self.require == ACCEPTANCE)
