"""`dlio-bench help`: the pages and example files of docs/, which a wheel has too."""

from pathlib import Path

from dlio_bench.errors import UsageError, did_you_mean

FOLDER = Path(__file__).parents[2] / "docs"  # of the clone; of the wheel dlio_bench/docs


def pages() -> dict[str, Path]:
    """Name -> file, in the order of names: limits -> reference/limits.md, limits.toml -> examples/limits.toml."""
    files = {path.stem: path for path in FOLDER.rglob("*.md")}
    files |= {path.name: path for path in (FOLDER / "examples").iterdir() if path.is_file()}
    return dict(sorted(files.items()))


def page(name: str) -> str:
    """The text of a page or example. UsageError for a name that there is not."""
    if name not in pages():
        raise UsageError(f"There is no page '{name}'.{did_you_mean(name, pages())} `dlio-bench help` lists all.")
    return pages()[name].read_text("utf-8")


def list_pages() -> str:
    """A line for each name, with the title of the page."""
    titles = {name: path.read_text("utf-8").partition("\n")[0] for name, path in pages().items()}
    return "\n".join(
        f"  {name:<28}{title.removeprefix('# ') if title.startswith('# ') and '.' not in name else 'an example file'}"
        for name, title in titles.items()
    )
