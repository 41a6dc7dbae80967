"""Text of a result file that other programs are about to show: whoever edited the file may have put anything there."""


def harmless(text: str) -> str:
    """The text without what moves a cursor, hides text or is no character; kinds of blanks become plain ones."""
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
