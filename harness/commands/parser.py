"""A command line that answers a wrong word in one paragraph, and help that does not break words."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from dlio_bench.errors import UsageError, did_you_mean
from dlio_bench.wrapping import wrap


class Parser(argparse.ArgumentParser):
    """argparse's parser, with UsageError instead of a page of usage, whole names of options, and help from `Help`.

    Its sub-commands get the same class.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"formatter_class": Help, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, with the nearest of the choices that argparse's message names."""
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        hint = did_you_mean(wrong[1], re.split(r"[,\s']+", wrong[2])) if wrong else ""
        raise UsageError(f"{message}.{hint} `{self.prog} --help` shows what there is.")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """The value, as argparse takes it. The error for a bad value names its option."""
        try:
            return super()._get_value(action, arg_string)
        except UsageError as error:
            option = "/".join(action.option_strings)
            if not option or option in str(error):
                raise
            raise UsageError(f"{option}: {error}") from None

    def refuse(self, unknown: list[str], command: str | None) -> NoReturn:
        """Raise UsageError for words that are no option of `command`."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and command in action.choices:
                parser = action.choices[command]
                hint = did_you_mean(unknown[0].partition("=")[0], parser._option_string_actions)
                raise UsageError(
                    f"{command} does not know {' '.join(unknown)}.{hint} `{parser.prog} --help` shows what there is."
                )
        self.error(f"unrecognized arguments: {' '.join(unknown)}")


def join_launcher_args(argv: Sequence[str]) -> list[str]:
    """argv with `--launcher-args VALUE` as one word: argparse takes a value that begins with a hyphen for an option.

    The same of `--fraction -1%`, so that the error names its value.
    """
    words = list(argv)
    for place, word in enumerate(words[:-1]):
        if word == "--launcher-args" or (word == "--fraction" and words[place + 1].endswith("%")):
            return [*words[:place], f"{word}={words[place + 1]}", *words[place + 2 :]]
    return words


class Help(argparse.HelpFormatter):
    """Help whose lines end between words, never at a hyphen, so that names can be copied. Texts keep their lines."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width=width, whole_words=True)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines() if "\n" in text else self._split_lines(text, width)
        return "".join(f"{indent}{line}\n" for line in lines)
