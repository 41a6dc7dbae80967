"""Options as types: each field of a command's struct is one option. Parser, help and refusals follow from the struct.

    class Options(Struct, frozen=True, kw_only=True):
        folder: Annotated[Path | None, argument("DIR", "folder on the storage", nargs="?")] = None
        size: Annotated[int | None, size("bytes of all files together"), Group("what is read")] = None
        launcher: Launcher = None

The default of a field is that of its option. A field is shown in the group of the field before it, if it names none. An
option that several commands have is declared once, at the end of this file, as a type.
"""

import argparse
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from dlio_bench.errors import UsageError, did_you_mean, one_of
from dlio_bench.units import format_bytes, parse_bytes, parse_seconds

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Given: TypeAlias = Mapping[str, Any]  # what the user gave, by field


class Group(Struct, frozen=True):
    """The heading above a field and those behind it in help; empty: none."""

    title: str


class Option(Struct, frozen=True):
    """What the command line says of a field. settings: of argparse's `add_argument`.

    names: on the command line, if it is not the field's own name; empty text: a value that stands without a name.
    """

    names: tuple[str, ...]
    settings: Mapping[str, Any]


class Command(Struct, frozen=True):
    """A command. run: gets what the user gave, by fields of `options`, and returns the exit status.

    process: groups of options that hold for the whole process, see `ground.starting`.
    """

    name: str
    help: str
    description: str
    options: type[Struct]
    run: Callable[[Given], int]
    epilog: str | None = None
    process: tuple[type[Struct], ...] = ()

    def add(self, commands: Commands) -> None:
        """Its parser, whose Namespace has what the user gave and nothing else."""
        parser = commands.add_parser(self.name, help=self.help, description=self.description, epilog=self.epilog)
        groups: dict[str, argparse._ActionsContainer] = {"": parser}
        for struct in (self.options, *self.process):
            title = ""
            hints = get_type_hints(struct, include_extras=True)
            for field in struct.__struct_fields__:
                notes = getattr(hints[field], "__metadata__", ())
                title = next((note.title for note in notes if isinstance(note, Group)), title)
                if title not in groups:
                    groups[title] = parser.add_argument_group(title)
                _add_field(groups[title], field, notes)

    def call(self, parsed: argparse.Namespace) -> int:
        """Run it on what the parser found."""
        return self.run(self.given_options(parsed))

    def given_options(self, parsed: argparse.Namespace) -> Given:
        """What the user gave of its options; what may be given several times as a tuple."""
        fields = self.options.__struct_fields__
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in vars(parsed).items()
            if name in fields and value not in (None, [])
        }


def _add_field(container: argparse._ActionsContainer, field: str, notes: Iterable[Any]) -> None:
    """The option of a field, if its type declares one."""
    for note in notes:
        if isinstance(note, Option):
            if note.names == ("",):  # argparse would take SUPPRESS for a value
                container.add_argument(field, **note.settings)
            else:
                names = note.names or (f"--{field.replace('_', '-')}",)
                container.add_argument(*names, dest=field, default=argparse.SUPPRESS, **note.settings)


def given(options: Struct, *names: str) -> dict[str, object]:
    """Those of the named fields that are not as by default, as options on the command line: {"--max-data": 10}."""
    default = {field.name: field.default for field in fields(options)}
    values = {name: getattr(options, name) for name in names}
    return {f"--{name.replace('_', '-')}": value for name, value in values.items() if value != default[name]}


def option(help: str, *names: str, **settings: Any) -> Option:
    """An option; a text, if `type` is not given."""
    return Option(names, {"help": help, **settings})


def argument(metavar: str, help: str, **settings: Any) -> Option:
    """A value that stands without a name."""
    return option(help, "", metavar=metavar, **settings)


def flag(help: str, *names: str) -> Option:
    """True where it is given; one that begins with --no- is False then."""
    return option(help, *names, action="store_false" if names and names[0].startswith("--no-") else "store_true")


def count(metavar: str, help: str, *, least: int = 1, most: int = 10**18) -> Option:
    """A whole number from `least` to `most`."""
    return option(help, metavar=metavar, type=partial(parse_count, least=least, most=most))


def counts(metavar: str, help: str, *, ascending: bool = False) -> Option:
    """Different whole numbers from 1 on. ascending: in whatever order they are given."""
    return option(help, metavar=f"{metavar}[,{metavar}...]", type=partial(parse_counts, ascending=ascending))


def choice(metavar: str, help: str, known: Collection[str]) -> Option:
    """One of the words that there are."""
    return option(help, metavar=metavar, type=partial(parse_choice, known=known))


def size(help: str, *, least: int = 0) -> Option:
    """Bytes, from `least` on."""
    return option(help, metavar="SIZE", type=partial(parse_size, least=least))


def seconds(help: str) -> Option:
    """A time."""
    return option(help, metavar="TIME", type=parse_seconds)


def share(help: str) -> Option:
    """A share above 0 % and up to 100 %."""
    return option(help, metavar="SHARE", type=parse_part)


def folder(help: str) -> Option:
    """A folder."""
    return option(help, metavar="DIR", type=Path)


def file(help: str) -> Option:
    """A file."""
    return option(help, metavar="FILE", type=Path)


def names(help: str, *flags: str, known: Collection[str] = (), metavar: str = "NAME[,NAME...]") -> Option:
    """Different words. known: all that there are, if they are few."""
    return option(help, *flags, metavar=metavar, type=partial(parse_names, known=known))


def parse_size(text: str, *, least: int = 0) -> int:
    """'16MB' -> 16_000_000. UsageError."""
    if (bytes_ := parse_bytes(text)) < least:
        raise UsageError(f"'{text}' is too small: it must be at least {format_bytes(least)}.")
    return bytes_


def parse_count(text: str, *, least: int = 1, most: int = 10**18) -> int:
    """'8' -> 8. UsageError."""
    number = int(text) if re.fullmatch(" *-?[0-9]{1,25} *", text) else None
    if number is None or not least <= number <= most:
        to = "on" if most == 10**18 else f"to {most}"
        raise UsageError(f"'{text}' cannot be used. Write a whole number from {least} {to}.")
    return number


def parse_counts(text: str, *, ascending: bool = False) -> tuple[int, ...]:
    """'1,2,4' -> (1, 2, 4). UsageError."""
    numbers = tuple(map(parse_count, text.split(",")))
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"'{text}' has a count twice. Give each count once.")
    return tuple(sorted(numbers)) if ascending else numbers


def parse_part(text: str) -> float:
    """'1%' and '0.01' -> 0.01. UsageError outside of (0, 1], and for 1, which may mean 1 % or all."""
    percent, part = (re.fullmatch(pattern, text) for pattern in (r" *([0-9.]+) *% *", r" *[0-9]*\.[0-9]+ *"))
    value = float(percent[1]) / 100 if percent and percent[1].count(".") < 2 else float(text) if part else 0.0
    if not 0 < value <= 1:
        meant = f" Did you mean {text.strip()}%?" if text.strip().isdecimal() and 0 < int(text) <= 100 else ""
        raise UsageError(f"'{text}' is not a share above 0 % and up to 100 %.{meant} Write one as 1% or 0.01.")
    return value


def parse_names(text: str, known: Collection[str] = ()) -> tuple[str, ...]:
    """'naive,prefetch' -> its words. UsageError."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise UsageError("It needs a name; `dlio-bench list` and --help show them.")
    if len(set(words)) != len(words):
        raise UsageError(f"'{text}' has a name twice. Give each name once.")
    return tuple(parse_choice(word, known) for word in words) if known else words


def parse_choice(text: str, known: Collection[str]) -> str:
    """The text, if it is known. UsageError."""
    if text not in known:
        raise UsageError(f"'{text}' is not known.{did_you_mean(text, known)} Use {one_of([*known])}.")
    return text


def absolute(text: str) -> str:
    """The path from the root, for processes that start elsewhere."""
    return os.path.abspath(text)  # noqa: PTH100 - links are kept


def parse_tiers(text: str) -> dict[str, int]:
    """'ram=10GB,disk=40GB' -> bytes by name. UsageError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, amount = part.partition("=")
        if not equals or not name.strip() or name.strip() in sizes:
            raise UsageError(f"'{text}': '{part}' is not NAME=SIZE, or names a tier again. Write ram=10GB,disk=40GB.")
        sizes[name.strip()] = parse_bytes(amount)
    return sizes


_LAUNCHERS = "local, mpirun, srun, jsrun, flux or pals (default: from the environment)"
BUFFERED, DIRECT = IO_MODES = ("buffered", "direct")
Launcher: TypeAlias = Annotated[str | None, option(_LAUNCHERS, metavar="NAME")]
JoiningLauncher: TypeAlias = Annotated[
    str | None,
    option(f"{_LAUNCHERS}; none: somebody else has started this command once for each rank", metavar="NAME"),
]
CacheDir: TypeAlias = Annotated[
    Path | None, folder("keep generated datasets in this folder (default $DLIO_BENCH_CACHE or ~/.cache/dlio-bench)")
]
Variant: TypeAlias = Annotated[
    str | None, option("layout variant of the workload (see `dlio-bench list`)", metavar="NAME")
]
Json: TypeAlias = Annotated[bool, flag("print JSON")]
