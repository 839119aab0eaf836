"""Every command that README and docs quote exists, takes its flags, has no placeholder, and runs in a test or in CI."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from aggregator_service.app import create_app as create_aggregator
from aggregator_service.settings import aggregator_settings
from audit.cli import app as audit
from benchmarks.harness.command import make_parser
from client_service.app import create_app as create_client
from simulation.cli import app
from simulation.progress import command_progress
from tests.support.small import small_client

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "k8s").rglob("README.md"))
TABLE = tomllib.loads((Path(__file__).parent / "documented_commands.toml").read_text(encoding="utf-8"))
GROUPS = {
    "catalogue": {"match", "sign"},
    "keys": None,
    "ledger": None,
    "members": None,
    "quarantine": None,
    "shard": None,
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
STAGES = "".join((ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("run", "nightly"))
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=.*", re.S)
PLACEHOLDER = re.compile(r"<[a-z][\w -]*>|\.\.\.|(?<![\w$-])(FOLDER|DATA|GRAPH|FILE|SHARD|NAME|RATE|ROWS|URL)(?![\w=])")
ADDRESS = re.compile(r"(?:\$SILO|https?://[^/\s\"']+)(/[^\s\"'?]*)")
LONGEST_DOCS = 5000  # lines over all pages


@dataclass(frozen=True)
class Line:
    """One command of a page."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """Words of the command without variables set before it, and without a path of the environment."""
        words = shlex.split(self.text, comments=True)
        while words and ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if words and words[0] != ".venv/bin/pytest":
            words[0] = words[0].removeprefix(".venv/bin/")
        return words


def split_commands(text: str) -> Iterator[str]:
    """Yields the commands of one line of a shell, which `&&`, a pipe or brackets part."""
    bare = re.sub(r"^\((.*)\)$", r"\1", text.strip())
    for part in re.split(r" && |; | \| (?![^']*'$)", bare) if "'" not in bare and "$(" not in bare else [bare]:
        command = re.sub(r"( >\s*\S+| &)$", "", part.strip())
        if command and not command.startswith("#"):
            yield command


def read_lines(page: Path) -> Iterator[Line]:
    """Yields every command of the page's shell blocks; a line goes on after a backslash or within quotes."""
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(encoding="utf-8"), flags=re.S | re.M):
        kept = ""
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            bare = re.sub(r"(^|\s+)# .*$", "", line)
            kept = f"{kept}\n{bare}" if kept else bare
            if kept.count("'") % 2 == 0:
                yield from (Line(page.name, command) for command in split_commands(kept))
                kept = ""


LINES = [line for page in PAGES for line in read_lines(page) if line.words]
LPSFED = [line for line in LINES if line.words[0] == "lpsfed"]


def parse_command(root: typer.Typer, words: list[str]) -> None:
    """Parses the words as the command line does, without running anything. Files need not be there."""
    command = typer.main.get_command(root)
    context = command.make_context("lpsfed", list(words))
    while hasattr(command, "resolve_command") and (rest := [*getattr(context, "_protected_args", ()), *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        assert command is not None, f"expected a command, got {name}"
        context = command.make_context(name, list(rest), parent=context)


def faults_of(root: typer.Typer, words: list[str]) -> str:
    """Says what the command line finds wrong with the words; nothing where it takes them."""
    try:
        with command_progress():  # --quiet and --json hide progress until the command ends, not in later tests
            parse_command(root, words)
    except Exception as error:  # of the command line's library, which typer may bring with it
        message = getattr(error, "message", None) or str(error)
        is_help = type(error).__name__ == "Exit"  # --help and its like
        return "" if is_help or "does not exist" in message else f"{type(error).__name__}: {message}"
    return ""


def command_name(words: list[str]) -> str:
    """Returns the name of a command of `lpsfed` as the table has it: with its second word where it is of a group."""
    inner = (
        words[2:3] if words[1] in GROUPS and (GROUPS[words[1]] is None or words[2] in (GROUPS[words[1]] or ())) else []
    )
    return " ".join([words[1], *inner])


@pytest.mark.parametrize("line", LPSFED, ids=lambda line: f"{line.page}: {line.text[:60]}")
def test_lpsfed_takes_a_line(line: Line) -> None:
    assert faults_of(app, line.words[1:]) == ""


@pytest.mark.parametrize("words", ["start --now", "run --clients many", "simulate shards --methodd x", "keys rotate a"])
def test_a_wrong_line_is_seen(words: str) -> None:
    assert faults_of(app, words.split()) != ""


@pytest.mark.parametrize("words", ["nothing", "run --nothing", "keys nothing"])
def test_an_unknown_name_within_a_sentence_is_seen(words: str) -> None:
    assert "No such" in faults_of(app, words.split())


def python_modules() -> list[Line]:
    return [line for line in LINES if line.words[:2] == ["python", "-m"]]


@pytest.mark.parametrize("line", python_modules(), ids=lambda line: f"{line.page}: {line.text[:60]}")
def test_a_module_is_there_and_takes_its_line(line: Line) -> None:
    module, rest = line.words[2], line.words[3:]
    assert importlib.util.find_spec(module) is not None
    if module == "benchmarks":
        make_parser().parse_args(rest)
    if module == "audit":
        assert faults_of(audit, rest) == ""
    if module.startswith("benchmarks."):
        runs = (ROOT / "tests/system/benchmarks/test_every_benchmark_runs.py").read_text(encoding="utf-8")
        assert f'"{module}"' in runs


INLINE = [
    Line(page.name, " ".join(code.split()))
    for page in PAGES
    for code in re.findall(
        r"`((?:\.venv/bin/)?(?:lpsfed|python -m benchmarks)\s[^`]+)`", page.read_text(encoding="utf-8")
    )
]


@pytest.mark.parametrize("line", INLINE, ids=lambda line: f"{line.page}: {line.text[:60]}")
def test_a_command_within_a_sentence_names_flags_that_exist(line: Line) -> None:
    words = [word for word in line.words if word not in ("...", "|")]
    if words[0] == "lpsfed":
        assert words[1].startswith("--") or "No such" not in faults_of(app, words[1:])
    elif words[2] == "benchmarks":
        make_parser().parse_args(words[3:])
    else:
        assert importlib.util.find_spec(words[2]) is not None


def test_no_line_has_a_placeholder() -> None:
    assert all(
        PLACEHOLDER.search(text) for text in ("lpsfed worth SHARD", "lpsfed join <invitation>", "lpsfed run ...")
    )
    found = [f"{line.page}: {line.text}" for line in LINES if PLACEHOLDER.search(" ".join(line.words))]
    assert found == []


def openapi_routes() -> set[tuple[str, str]]:
    """Returns method and path of every call that either service describes, and those that each answers besides."""
    token = "a-token-of-no-service-that-runs-1234"
    settings = aggregator_settings(state_directory=Path("unused"), operator_token=token)
    documents = [
        create_client(small_client(Path("unused"), Path("unused"))).openapi(),
        create_aggregator(settings).openapi(),
    ]
    found = {(method.upper(), path) for one in documents for path, by in one["paths"].items() for method in by}
    return found | {("GET", path) for path in ("/", "/metrics", "/docs", "/openapi.json")}


def test_every_address_of_curl_is_a_route() -> None:
    routes = [(method, re.compile(re.sub(r"\{\w+\}", "[^/]+", path))) for method, path in openapi_routes()]
    asked = [(line, match[1]) for line in LINES if line.words[0] == "curl" and (match := ADDRESS.search(line.text))]
    wrong = []
    for line, path in asked:
        posted = {"-d", "--json", "--data"} & set(line.words)
        method = line.words[line.words.index("-X") + 1] if "-X" in line.words else "POST" if posted else "GET"
        if not any(method == known and pattern.fullmatch(path) for known, pattern in routes):
            wrong.append(f"{line.page}: {method} {path}")
    assert len(asked) > 25 and wrong == []


def test_every_target_of_make_is_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", MAKEFILE, flags=re.M))
    named = {line.words[1] for line in LINES if line.words[0] == "make"}
    named |= {
        target for page in PAGES for target in re.findall(r"`make ([a-z0-9-]+)[^`]*`", page.read_text(encoding="utf-8"))
    }
    assert named - targets == set()


def quoted() -> dict[str, set[str]]:
    """Returns what the pages quote, as the table has it."""
    found: dict[str, set[str]] = {
        "lpsfed": {command_name(line.words) for line in LPSFED},
        "make": set(),
        "programs": set(),
    }
    for line in LINES:
        first = line.words[0]
        if first == "make":
            found["make"].add(line.words[1])
        elif first not in ("lpsfed", "python") and first not in TABLE["shell"]["lines"]:
            found["programs"].add(first)
    return found


@pytest.mark.parametrize("kind", ["lpsfed", "make", "programs"])
def test_the_table_says_where_every_quoted_command_runs(kind: str) -> None:
    assert quoted()[kind] == TABLE[kind].keys()


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for kind in ("lpsfed", "make", "programs") for name, place in TABLE[kind].items()]
)
def test_what_the_table_names_runs_it(name: str, place: str) -> None:
    if place.startswith("make "):
        assert re.search(rf"\b{place}\b", STAGES), f"expected a stage {place} in .ci/run or .ci/nightly"
    else:
        text = (ROOT / place).read_text(encoding="utf-8")
        last = name.split()[-1]
        assert name not in TABLE["lpsfed"] or re.search(rf"[\"' /]{last}[\"' ]", text), f"{place} does not run {name}"


def test_the_pages_are_short_and_begin_with_a_sentence_and_a_command() -> None:
    docs = sorted((ROOT / "docs").glob("*.md"))
    assert sum(len(page.read_text(encoding="utf-8").splitlines()) for page in docs) <= LONGEST_DOCS
    heads = {page.name: re.sub(r"^<!--.*-->\n+", "", page.read_text(encoding="utf-8")) for page in docs}
    begin = re.compile(r"# [^\n]+\n\n[A-Z][^#`|][^#|]*?\n\n```sh\n", re.S)
    assert [name for name, text in heads.items() if not begin.match(text)] == []


def test_names_of_logs_fields_settings_and_tests_are_in_the_sources() -> None:
    kinds = ("*.py", "*.toml", "*.yml", "*.yaml", "*.js", "*.html")
    rooms = [
        folder for folder in ROOT.iterdir() if folder.is_dir() and folder.name[0] != "." and folder.name != "build"
    ]
    paths = [path for room in rooms if room.name != "docs" for kind in kinds for path in room.rglob(kind)]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths}
    sources = "\n".join(text for path, text in texts.items() if not path.is_relative_to(ROOT / "tests"))
    of_tests = {name for text in texts.values() for name in re.findall(r"^ *(?:async )?def (\w+)", text, flags=re.M)}
    known = {path.stem for path in paths} | of_tests
    made = {"trainer_ended", "basis_exact", "basis_iterated", "pg_dump"}  # put together in the code; of others
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`([a-z]+_[a-z0-9_]+)`", page.read_text(encoding="utf-8"))
    }
    assert [one for one in sorted(named) if one[1] not in sources and one[1] not in known | made] == []
