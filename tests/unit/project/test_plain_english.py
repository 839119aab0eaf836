"""First lines of docstrings: one plain sentence, of few words, that a stranger understands."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "aggregator_service",
    "audit",
    "benchmarks",
    "client_service",
    "docs",
    "flower",
    "lpsfed",
    "requirements",
    "shared",
    "simulation",
)
MOST_WORDS = 15
RIDDLES = re.compile(
    r"\b(whoever|whom|nobody|anybody|somebody|likewise|so many|what the|what a|where there|gives? way|held up|goes on"
    r"|at hand|by heart|of late|in one go|once and for all)\b",
    re.IGNORECASE,
)
VERB = re.compile(r"[A-Z][a-z]+s\b")
NOT_VERBS = {
    "As",
    "Its",
    "This",
    "Thus",
    "Always",
    "Names",
    "Numbers",
    "Seconds",
    "Bytes",
    "Rows",
    "Items",
    "Users",
    "Clients",
    "Lines",
}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def room_of(path: Path) -> str:
    """Returns package/room of a module, or package/module where it lies loose."""
    return "/".join(path.relative_to(ROOT).with_suffix("").parts[:2])


def every_file() -> Iterator[Path]:
    """Yields every module of the product."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def is_function(node: Documented) -> bool:
    """Tells whether a docstring here must begin with a verb: properties are named by their noun."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(one) or ".setter" in ast.unparse(one) for one in node.decorator_list)


def find_faults(first: str, node: Documented) -> list[str]:
    """Lists what is wrong with the first line of a docstring."""
    found = []
    if len(first.split()) > MOST_WORDS:
        found.append(f"more than {MOST_WORDS} words")
    if riddle := RIDDLES.search(first):
        found.append(f"the words {riddle[0]!r}")
    if "->" in first:
        found.append("an arrow")
    if not first.endswith((".", ":")):
        found.append("no full stop")
    if is_function(node) and (not VERB.match(first) or first.split()[0] in NOT_VERBS):
        found.append("no verb at its beginning, such as Returns or Computes")
    return found


def list_faults(path: Path) -> list[str]:
    """Lists the faults of all docstrings of a module."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            first = text.splitlines()[0]
            line = getattr(node, "lineno", 1)
            found += [f"{path.relative_to(ROOT)}:{line}: {fault}: {first}" for fault in find_faults(first, node)]
    return found


@pytest.mark.parametrize("room", sorted({room_of(path) for path in every_file()}))
def test_first_lines_are_plain_sentences(room: str) -> None:
    faults = [fault for path in every_file() if room_of(path) == room for fault in list_faults(path)]
    assert faults == [], "\n".join(faults)


def test_the_check_finds_each_fault() -> None:
    def faults(line: str, kind: str = "def f():") -> list[str]:
        node = ast.parse(f"{kind}\n    '''{line}'''").body[0]
        assert isinstance(node, Documented)
        return find_faults(line, node)

    assert faults("Returns the mean of each row.") == []
    assert faults("Mean of each row.", "class A:") == [] and faults("Mean of each row.", "@property\ndef f():") == []
    assert "verb" in faults("The mean of each row.")[0]
    assert "full stop" in faults("Returns the mean of each row, which")[0]
    assert "arrow" in faults("Maps rows -> means.")[0]
    assert "words" in faults("Tells whoever asks.")[0]
    assert "more than" in faults("Returns " + "very " * MOST_WORDS + "much.")[0]
