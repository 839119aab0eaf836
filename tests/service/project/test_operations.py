"""Every command that docs/operations.md shows is one that `lpsfed` takes, and every path in it is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from fastapi.routing import iter_route_contexts
from typer.testing import CliRunner

from client_service.__main__ import server_settings
from client_service.app import create_app
from client_service.http.server_app import create_server
from simulation.cli import app
from tests.support.small import small_client

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SHOWN = re.sub(r"\\\n\s*", "", "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S)))
COMMANDS = re.findall(r"^lpsfed (.+)$", SHOWN, flags=re.M)


def taken(line: str) -> bool:
    """Is there such a command with such options? Its help is told only once the line has been read as a whole."""
    return CliRunner().invoke(app, [*shlex.split(line), "--help"]).exit_code == 0


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_taken_with_its_options(line: str) -> None:
    assert taken(line)


@pytest.mark.parametrize("line", ["start --now", "keys rotate client-1", "status --operator-token-file t --whole"])
def test_what_is_not_a_command_is_seen(line: str) -> None:
    assert not taken(line)


def test_the_page_shows_what_an_operator_does() -> None:
    names = {line.split()[0] for line in COMMANDS}
    assert names >= {"status", "aggregator", "keys", "secret", "doctor", "run"} and len(COMMANDS) > 9


def test_a_server_answers_what_the_page_says() -> None:
    settings = small_client(Path("unused"), Path("unused"))
    words = r"answers the routes under `(\w+)`, `(\w+)` and\s+`(\w+)` of the reference, and\s+(`/.*?)\. The trainer"
    said = re.search(words, PAGE, flags=re.S)
    assert said is not None
    tags, named = {said[1], said[2], said[3]}, set(re.findall(r"`(/[a-z/]+)`", said[4]))
    paths = create_app(settings).openapi()["paths"]
    calls = {
        (method.upper(), path) for path, by in paths.items() for method, one in by.items() if tags & {*one["tags"]}
    }
    found = {
        (method, str(route.path))
        for route in iter_route_contexts(create_server(server_settings(settings, trains=False)).routes)
        for method in route.methods or ()
    }
    assert len(calls) > 5 and found - {("HEAD", path) for _, path in found} == calls | {("GET", path) for path in named}


def test_the_files_and_headings_that_it_leads_to_are_there() -> None:
    for name in re.findall(r"\]\(([a-z-]+\.md)", PAGE):
        assert (ROOT / "docs" / name).exists(), name
    headings = {
        re.sub(r"[^a-z ]", "", line.lower()).strip().replace(" ", "-") for line in re.findall(r"^##+ (.+)$", PAGE, re.M)
    }
    assert set(re.findall(r"\]\(#([a-z-]+)\)", PAGE)) <= headings
    for path in ("observability/alerts.yml", "k8s/components/servicemonitor"):
        assert path in PAGE and (ROOT / path).exists()


def test_make_soak_is_there() -> None:
    assert re.search(r"^soak: install ## ", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
