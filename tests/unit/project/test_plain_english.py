"""First lines of docstrings: one plain sentence, of few words, that a stranger understands."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
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
NO_NOUN = re.compile(r"(What|Whose|Whom?|Of|Off|How|In how|Newest|Oldest|All that|Which|Where|When|It|Its)\b")
NUMBERED = re.compile(r"(How|In how) many\b|Which\b|What\b|Where\b")
COMMENT = re.compile(r"# (Paper|Release|noqa|type)\b")
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
    "Sizes",
    "Means",
    "Degrees",
    "Interactions",
    "Transitions",
    "Eigenvalues",
    "Steps",
    "Blocks",
    "Values",
}

PROPERTY_VERBS = re.compile(r"(Returns|Counts|Lists|Computes|Tells|Yields|Reads|Finds|Makes|Describes)\b")
CONSTANT_RIDDLES = re.compile(r"(What|Of|With|Whose|For)\b")  # first words that name no thing
SENTENCE = re.compile(r"[A-Z][a-z]+ [a-z]")
TRUTH = re.compile(r"(Tells|Checks) (if|whether)\b")  # first words of a function that returns a bool
CONDITION = re.compile(r"(\w(Error|Stop)|\bNone|\bTrue|\bFalse|(?<![\w.])-?[01])\s+where\b")
PLACEHOLDER = re.compile(r"@[A-Z]{2,}@|\b(TODO|FIXME|XXX)\b")  # of a figure that somebody wanted to fill in

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
    if not is_function(node) and not isinstance(node, ast.Module | ast.ClassDef) and PROPERTY_VERBS.match(first):
        found.append("a verb at the beginning of a property, which is a noun")
    if is_function(node) and (not (verb := VERB.match(first)) or verb[0] in NOT_VERBS):
        found.append("no verb at its beginning, such as Returns or Computes")
    if isinstance(node, ast.ClassDef | ast.Module) and NO_NOUN.match(first):
        found.append("no noun at its beginning")
    if isinstance(node, ast.FunctionDef) and not is_function(node) and NUMBERED.match(first):
        found.append("no noun at its beginning, such as Number of")
    return found


def find_false_results(first: str, node: Documented) -> list[str]:
    """Lists what the first line says of a function's result that its return type does not."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.returns is None:
        return []
    result = ast.unparse(node.returns)
    found = []
    if TRUTH.match(first) and result != "bool":
        found.append(f"a bool in words, but the result is {result}")
    if re.match(r"Raises \w+Error\b", first) and result not in ("None", "NoReturn", "Iterator[None]"):
        found.append(f"an error alone, but the result is {result}")
    if re.match(r"Returns (?!None\b|at once\b)", first) and result in ("None", "NoReturn"):
        found.append("a result in words, but there is none")
    return found


def find_torn_paragraphs(text: str) -> list[str]:
    """Lists paragraphs of prose that end in the middle of a sentence."""
    paragraphs = [" ".join(one.split()) for one in re.split(r"\n\s*\n", text)]
    return [f"torn off: {one[-40:]}" for one in paragraphs if SENTENCE.match(one) and one[-1].isalnum()]


def find_constant_faults(text: str) -> list[str]:
    """Lists what is wrong with the docstring of a constant, a field or a type."""
    first = text.splitlines()[0]
    found = [f"the words {riddle[0]!r}" for riddle in (RIDDLES.search(first), CONSTANT_RIDDLES.match(first)) if riddle]
    if "->" in text and not text.startswith("("):
        found.append("an arrow, where no arguments of a function stand before it")
    return found


def every_constant_docstring(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and text of each string behind an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for before, one in pairwise(body if isinstance(body, list) else ()):
            value = one.value if isinstance(one, ast.Expr) else None
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Constant):
                yield one.lineno, str(value.value)


def list_faults(path: Path) -> list[str]:
    """Lists the faults of all docstrings of a module."""
    found, tree = [], ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            first = text.splitlines()[0]
            line = getattr(node, "lineno", 1)
            faults = [*find_faults(first, node), *find_false_results(first, node)]
            if condition := CONDITION.search(text):
                faults.append(f"where in place of if: {condition[0]}")
            faults += [] if isinstance(node, ast.Module) else find_torn_paragraphs(text)  # modules end in commands
            faults += [f"a comment within a docstring: {comment[0]}"] if (comment := COMMENT.search(text)) else []
            found += [f"{path.relative_to(ROOT)}:{line}: {fault}: {first}" for fault in faults]
    for line, text in every_constant_docstring(tree):
        found += [f"{path.relative_to(ROOT)}:{line}: {fault}: {text}" for fault in find_constant_faults(text)]
    return found


@pytest.mark.parametrize("room", sorted({room_of(path) for path in every_file()}))
def test_first_lines_are_plain_sentences(room: str) -> None:
    faults = [fault for path in every_file() if room_of(path) == room for fault in list_faults(path)]
    assert faults == [], "\n".join(faults)


def every_page() -> Iterator[Path]:
    """Yields every page that a reader meets."""
    for pattern in ("*.md", "docs/*.md", "benchmarks/**/*.md", "k8s/**/*.md", "examples/**/*.md"):
        yield from sorted(ROOT.glob(pattern))


def test_no_page_has_a_placeholder() -> None:
    found = {path.relative_to(ROOT): one[0] for path in every_page() if (one := PLACEHOLDER.search(path.read_text()))}
    assert found == {}


def test_the_check_finds_each_fault() -> None:
    def faults(line: str, kind: str = "def f():") -> list[str]:
        node = ast.parse(f"{kind}\n    '''{line}'''").body[0]
        assert isinstance(node, Documented)
        return find_faults(line, node)

    assert faults("Returns the mean of each row.") == []
    assert faults("Mean of each row.", "class A:") == [] and faults("Mean of each row.", "@property\ndef f():") == []
    assert CONDITION.search("Raises DataError where it is damaged.") and not CONDITION.search("a file where it is")
    for line, result in (("Tells whether it fits.", "int"), ("Raises KeyError.", "int"), ("Returns the sum.", "None")):
        node = ast.parse(f"def f() -> {result}: ...").body[0]
        assert isinstance(node, ast.FunctionDef) and find_false_results(line, node) != []
    assert "verb" in faults("The mean of each row.")[0]
    assert "full stop" in faults("Returns the mean of each row, which")[0]
    assert "arrow" in faults("Maps rows -> means.")[0]
    assert "words" in faults("Tells whoever asks.")[0]
    assert (
        "verb" in faults("Means over the draws.")[0] and "verb" in faults("Degrees, and products with directions.")[0]
    )
    assert "noun" in faults("Whose rows are kept.", "class A:")[0]
    assert "noun" in faults("How many users have a list.", "@property\ndef f():")[0]
    assert "more than" in faults("Returns " + "very " * MOST_WORDS + "much.")[0]
    assert "noun" in faults("Returns the mean.", "@property\ndef f():")[0]
    assert find_torn_paragraphs("Returns one.\n\nIts sine at each of width\n\n2 frequencies.") != []
    assert find_torn_paragraphs("Returns one.\n\nRaises KeyError for none.") == []
    assert find_constant_faults("(name, size) -> the tensor.") == [] == find_constant_faults("Tensor by name.")
    assert "arrow" in find_constant_faults("Name -> its tensor.")[0]
    assert "What" in find_constant_faults("What a silo signs.")[0] + find_constant_faults("What it signs.")[0]
    assert PLACEHOLDER.search("| @CS@ |") and not PLACEHOLDER.search("ops@example.org, @AUTH")
