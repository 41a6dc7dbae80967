"""Text in lines that fit a terminal."""

import re
import textwrap

WIDTH = 80  # columns
FORMULA = ("=", "+", "-", "@", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}", "\N{FULLWIDTH HYPHEN-MINUS}",
           "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
_GLUE = "\x1f"  # stands for a blank within a line


def wrap(
    text: str, head: str = "", hang: int | None = None, *, width: int = WIDTH, whole_words: bool = False
) -> list[str]:
    """`head` and `text` in lines of at most `width` columns, those after the first indented by `hang` columns.

    hang: None: the width of `head`. whole_words: a word longer than a line stays whole, so that it can be copied. A
    number stays with its unit, and no line ends at a hyphen.
    """
    lines = textwrap.wrap(
        re.sub(r"(?<=\d) (?=\S)", _GLUE, text),
        width,
        initial_indent=head,
        subsequent_indent=" " * (len(head) if hang is None else hang),
        break_long_words=not whole_words,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines] or [head.rstrip()]


def cell(text: str) -> str:
    """The text as a cell of a CSV table, printable.

    A spreadsheet takes text that begins with one of `FORMULA` for a formula, and runs it: an apostrophe comes before
    it (OWASP, "CSV Injection").
    """
    shown = printable(text)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA) else shown


def printable(line: str) -> str:
    """The line without what a terminal would obey: a � for each control character and escape, a blank for odd blanks.

    What comes from a file is not trusted: escape sequences could rewrite what is on the screen, or call programs.
    """
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
        for character in line
    )
