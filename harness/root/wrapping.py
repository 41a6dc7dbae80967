"""Text in lines that fit a terminal."""

import re
import textwrap

WIDTH = 80  # columns
_GLUE = "\x1f"  # stands for a blank that no line ends at


def wrapped(
    text: str, head: str = "", hang: int | None = None, *, width: int = WIDTH, whole_words: bool = False
) -> list[str]:
    """`text` behind `head` in lines of at most `width` columns, those after the first indented by `hang` columns.

    hang: as wide as `head` where it is None. whole_words: a word that is longer than a line stays in one piece, so that
    it can be copied. A number keeps its unit, and no line ends at a hyphen.
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
