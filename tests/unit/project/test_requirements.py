"""The locks hold what pyproject.toml asks for, every package by its hash, and nothing that nobody needs."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"aggregator": "aggregator", "client": "client", "tools": "simulation", "development": "development"}
ENGINES = {"ray": "ray", "flower": "flower"}  # each in an environment of its own
SERVERS = {"aggregator-storage": "storage", "storage": "storage"}  # an image with more in it, and what tests it
LOCKS = (*EXTRAS, *ENGINES, *SERVERS, "generator", "supply-chain")
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^ ]+)(?: ; (?P<marker>[^\\]+))? \\$", flags=re.M)


def pins(lock: str) -> dict[str, str]:
    """Package -> version."""
    text = (FOLDER / f"{lock}.txt").read_text(encoding="utf-8")
    return {match["name"]: match["version"] for match in PIN.finditer(text)}


def asked(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for by name, with what its extras take from one another."""
    found: list[Requirement] = []
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        own = requirement.name == PROJECT["name"]
        found += [each for name in requirement.extras for each in asked(name)] if own else [requirement]
    return found


def needed(requirements: list[Requirement]) -> set[str]:
    """These packages and all that they need in turn, as the installed packages themselves say."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(each.name), frozenset(each.extras)) for each in requirements]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        name, extras = here
        for each in map(Requirement, requires(name) or ()):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                waiting.append((canonicalize_name(each.name), frozenset(each.extras)))
    return {name for name, _ in seen}


def load(name: str) -> ModuleType:
    """A script beside the locks."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_a_pin_with_hashes_and_names_no_host(lock: str) -> None:
    text = (FOLDER / f"{lock}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    bodies = re.split(r"^(?=[^ #\n])", re.sub(r"^#.*\n", "", text, flags=re.M), flags=re.M)[1:]
    assert (
        len(bodies) == len(PIN.findall(text)) > 20
    )  # a package may have a version for older Pythons beside its newest
    for body in bodies:
        assert re.fullmatch(r"(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", body.partition("\n")[2]), body


@pytest.mark.parametrize("lock", EXTRAS | ENGINES | SERVERS)
def test_a_lock_holds_every_dependency_in_a_version_that_is_asked_for(lock: str) -> None:
    found = pins(lock)
    for requirement in asked((EXTRAS | ENGINES | SERVERS)[lock]):
        if requirement.name != "torch":
            assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), str(requirement)


@pytest.mark.parametrize("lock", EXTRAS)
def test_a_lock_holds_what_its_packages_need_and_nothing_else(lock: str) -> None:
    """Of what is not installed here only the packages of other systems may be there."""
    everything, found = needed(asked(EXTRAS[lock])) - {"torch"}, set(pins(lock))
    assert everything - found == set()
    assert found - everything <= {"colorama", "pywin32"}


def test_torch_alone_has_no_hash_and_is_pinned_as_in_the_project() -> None:
    assert (FOLDER / "torch.txt").read_text(encoding="utf-8").split() == [
        str(each) for each in asked("client") if each.name == "torch"
    ]
    of_a_build = re.compile("torch|triton|cuda|nvidia")
    assert [name for lock in LOCKS for name in pins(lock) if of_a_build.match(name)] == []


def test_images_hold_the_versions_that_are_tested() -> None:
    tested = pins("development").items()
    assert all(pins(lock).items() <= tested for lock in EXTRAS)


def test_the_aggregator_s_image_holds_no_package_of_a_client_or_of_the_terminal() -> None:
    """No way to make an HTTP call among them: the aggregator calls nobody."""
    others = {"httpx", "httpcore", "certifi", "requests", "urllib3", "polars", "pandas", "pyarrow", "dp-accounting"}
    assert (
        pins("aggregator").keys() & (others | {"torch", "setuptools", "typer", "rich", "matplotlib", "optuna"}) == set()
    )


def test_every_dependency_is_listed_with_what_it_is_for() -> None:
    listed = set(
        re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "docs/packages.md").read_text(encoding="utf-8"), flags=re.M)
    )
    assert listed == {canonicalize_name(each.name) for each in asked("development")}


def test_the_files_of_others_are_those_that_are_listed_with_their_licences_beside_them() -> None:
    text, folder = (ROOT / "docs/packages.md").read_text(encoding="utf-8"), ROOT / "shared/web/static"
    listed = re.findall(r"^\| `([^`]+)` \| `([a-z-]+)@[0-9.]+` \| [^|]+ \| `([0-9a-f]{64})` \|$", text, flags=re.M)
    assert [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name, _, _ in listed] == [
        digest for _, _, digest in listed
    ]
    own = {"charts.js", "icon.svg", "page.css", "page.js", "reference.js"}
    others = {path.name for path in folder.iterdir() if path.suffix != ".txt"} - own
    assert others == {name for name, _, _ in listed}
    assert {f"{package.removesuffix('-dist')}-LICENSE.txt" for _, package, _ in listed} <= {
        path.name for path in folder.iterdir()
    }


def test_engines_are_in_no_image_and_not_in_the_development_s_environment() -> None:
    assert "ray" in pins("ray") and pins("flower")["flwr"] == "1.41.0"
    assert [lock for lock in EXTRAS if pins(lock).keys() & {"ray", "flwr"}] == []
    assert all(pins("ray")[name] == version for name, version in pins("tools").items())


def test_what_reaches_servers_is_in_no_image_that_does_not_ask_for_it() -> None:
    assert [lock for lock in EXTRAS if pins(lock).keys() & {"psycopg", "psycopg-binary", "s3fs", "botocore"}] == []
    larger = pins("aggregator-storage")
    assert pins("aggregator").items() <= larger.items() <= pins("storage").items()
    assert larger.keys() & {"moto", "pytest", "polars", "werkzeug"} == set()


def test_the_locks_tools_are_in_no_image_and_not_in_the_development_s_environment() -> None:
    tools = {"uv", "pip-audit", "cyclonedx-bom"}
    assert tools <= pins("supply-chain").keys()
    assert [lock for lock in EXTRAS if pins(lock).keys() & tools] == []


@pytest.mark.parametrize(
    ("packages", "code", "says"),
    [
        ([], 0, "SKIPPED"),
        ([{"name": "a", "skip_reason": "not found"}], 0, "SKIPPED"),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
            0,
            "1 packages audited",
        ),
        ([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}], 1, "a 1: CVE-1"),
    ],
)
def test_an_audit_fails_for_findings_alone_and_says_when_it_asked_nobody(
    packages: list[dict[str, Any]], code: int, says: str
) -> None:
    lines, found = load("audit").summarise(packages)
    assert found == code and says in lines[0]


def test_an_image_is_pinned_by_the_digest_that_the_engine_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    module, digest = load("pin_images"), f"sha256:{'ab' * 32}"
    monkeypatch.setattr(module, "ask_engine", lambda *words: digest if words[0] == "buildx" else "")
    text = "# why\nLPSFED_BASE_IMAGE=python:3.11-slim-bookworm@sha256:old\nLPSFED_ROUNDS=3\n"
    pinned = f"# why\nLPSFED_BASE_IMAGE=python:3.11-slim-bookworm@{digest}\nLPSFED_ROUNDS=3\n"
    assert module.pin_images(text) == pinned == module.pin_images(pinned)
    monkeypatch.setattr(module, "ask_engine", lambda *words: "" if words[0] == "buildx" else f"python@{digest}")
    assert module.pin_images(text) == pinned


def test_an_image_without_a_digest_is_an_error_and_not_a_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("pin_images")
    monkeypatch.setattr(module, "ask_engine", lambda *_: "")
    with pytest.raises(ValueError, match="expected a digest from its registry, got none"):
        module.pin_images("LPSFED_BASE_IMAGE=python:3.11-slim-bookworm\n")
