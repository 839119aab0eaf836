"""What the README and its pages promise is there: every setting is named, every command exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from aggregator_service.settings import AggregatorSettings
from client_service.boundary.policy import Policy
from client_service.privacy.settings import PrivacySettings
from client_service.settings import ClientSettings
from client_service.tasks import TASKS
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from simulation.cli.commands import COMMANDS
from simulation.cli.keys import app as keys

SETTINGS = (Path(__file__).parents[3] / "docs/settings.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_one_screen() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("settings", [AggregatorSettings, ClientSettings])
def test_every_setting_of_a_service_is_documented(settings: type[BaseModel]) -> None:
    assert [name for name in settings.model_fields if f"`{name.upper()}`" not in SETTINGS] == []


@pytest.mark.parametrize("model", [AggregatorSettings, ClientSettings, Policy, PrivacySettings, MethodSettings, RunIn])
def test_every_setting_says_what_it_means(model: type[BaseModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_every_task_is_documented() -> None:
    [row] = re.findall(r"^\| `TASK` \|.*$", SETTINGS, flags=re.M)
    assert [name for name in TASKS if f"`{name}`" not in row] == []


def test_every_command_that_the_pages_show_exists() -> None:
    text = "\n".join(
        code for page in PAGES for code in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), flags=re.S)
    )
    shown = set(re.findall(r"(?:^|bin/)lpsfed ([a-z][a-z-]+)", text, flags=re.M))
    assert (
        {"demo", "partition", "simulate", "report", "run", "secret", "keys", "privacy-report"}
        <= shown
        <= COMMANDS.keys()
    )


def test_every_command_about_keys_that_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"lpsfed keys ([a-z]+)", (ROOT / "docs/operations.md").read_text(encoding="utf-8")))
    assert shown == {
        command.name or (command.callback and command.callback.__name__) for command in keys.registered_commands
    }


ROOT = Path(__file__).parents[3]
FOLDERS = [
    folder
    for folder in ROOT.iterdir()
    if folder.is_dir() and folder.name[0] != "." and folder.name not in ("build", "shared")
]  # not an environment, whose name begins with a dot
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.md"))])
PLACEHOLDER = re.compile(
    r"\b(TODO|TBD|FIXME|XXX|N\.NN|[X#]\.[X#]+)\b|^\W*[A-Z]{4,}\W*$|^\s*(\.\.\.|…)\s*$|\?\?\?"
    r"|(?i:\b(figures|numbers|results|details) (will )?follow\.|\bto be (measured|written|filled in)\b|lorem ipsum)",
    flags=re.MULTILINE,
)
NUMBER = re.compile(r"[-+~]?\d[\d.,]*( ?%| ?s)?")


def find_placeholders(page: str) -> list[str]:
    """Words that stand for what somebody meant to write, and empty cells of a table's column of figures."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "`code`", page, flags=re.DOTALL)
    found = [line for line in text.splitlines() if PLACEHOLDER.search(line)]
    for table in re.findall(r"(?:^\|.*\n)+", f"{page}\n", flags=re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
        found += [" | ".join(row) for row in rows[2:] if "..." in row]
        for column in zip(*rows[2:], strict=False):
            figures = sum(bool(NUMBER.fullmatch(cell)) for cell in column)
            if "" in column and 2 * figures > len(column):
                found.append(f"an empty cell in a column of figures: {' | '.join(column)}")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_placeholder(path: Path) -> None:
    assert find_placeholders(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "planted",
    [
        "## Figures\n\nFIGURES\n\nThe command cuts",
        "| a | b |\n| --- | --- |\n| one | 1.5 |\n| two | 2.5 |\n| three | |\n",
        "| a | b |\n| --- | --- |\n| one | ... |\n",
        "it takes X.XX s",
        "TODO: measure",
        "Figures follow.",
        "...\n",
    ],
)
def test_a_planted_placeholder_is_found(planted: str) -> None:
    assert len(find_placeholders(f"# A page\n\nWords, and `...` or TODO as code: `TODO`.\n\n{planted}\n")) >= 1


def test_words_and_whole_tables_are_no_placeholders() -> None:
    page = (
        "# A page\n\nWords that follow each other, `TBD`, ...\n\n| a | b |\n| --- | --- |\n| one | |\n| two | -0.5 |\n"
    )
    assert find_placeholders(page) == []
