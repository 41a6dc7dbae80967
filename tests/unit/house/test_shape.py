"""The shape of the house is a decision: lines of each room, modules of a folder and imports, as the page says."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Shape")[2]
FILES = sorted(path for room in ("benchmarks", "datagen", "harness", "reports") for path in (ROOT / room).rglob("*.py"))
MOST_MODULES = 25  # of a folder


def room_of(path: Path) -> str:
    """'harness/commands/run/told/checks.py' -> 'harness/commands/run'; a single file is of the folder it lies in."""
    parts = path.relative_to(ROOT).parent.parts
    return "/".join(parts[: {"harness": 3 if parts[1:2] == ("commands",) else 2, "reports": 2}.get(parts[0], 1)])


def lines_of_imports(text: str) -> int:
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)


def test_no_room_is_larger_than_the_page_says() -> None:
    said = {
        name: int(lines.replace(",", "")) for name, lines in re.findall(r"^\| `([\w/]+)` \| ([\d,]+) \|", PAGE, re.M)
    }
    lines: defaultdict[str, int] = defaultdict(int)
    for path in FILES:
        lines[room_of(path)] += len(path.read_text().splitlines())
    assert set(said) == set(lines)
    assert {room: found for room, found in lines.items() if found > said[room]} == {}


def test_a_folder_holds_no_more_modules_than_one_can_see() -> None:
    modules: defaultdict[Path, int] = defaultdict(int)
    for path in FILES:
        modules[path.parent] += path.name != "__init__.py"
    assert {folder: count for folder, count in modules.items() if count > MOST_MODULES} == {}


def test_imports_have_no_larger_share_of_all_lines_than_the_page_says() -> None:
    said = re.search(r"imports are at most ([\d.]+) %", PAGE)
    assert said is not None
    texts = [path.read_text() for path in FILES]
    share = 100 * sum(map(lines_of_imports, texts)) / sum(len(text.splitlines()) for text in texts)
    assert share <= float(said[1])
