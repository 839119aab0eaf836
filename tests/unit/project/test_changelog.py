"""The changelog has the form that it names, and what it points at is there."""

from __future__ import annotations

import re
from pathlib import Path

from simulation.cli.commands import COMMANDS

ROOT = Path(__file__).parents[3]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}


def test_it_begins_with_what_is_not_released_and_has_known_kinds_of_changes() -> None:
    versions = re.findall(r"^## (.*)$", CHANGELOG, flags=re.M)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    assert set(re.findall(r"^### (.*)$", CHANGELOG, flags=re.M)) <= KINDS


def test_its_links_lead_to_files_and_the_readme_leads_to_it() -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", CHANGELOG)
    assert len(targets) > 10 and [name for name in targets if not (ROOT / name).is_file()] == []
    assert "(CHANGELOG.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_commands_that_it_names_exist() -> None:
    named = set(re.findall(r"`lpsfed ([a-z]+)", CHANGELOG))
    assert {"demo", "run", "probe"} <= named <= COMMANDS.keys()
