"""What CI keeps of a run: the pictures of the pages, whether the run has passed or not. Its make here does nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import FailureLines
from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
TARGETS = ("test", "test-system", "faults", "soak", "e2e-compose")
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")})
FROM_MAKE = {"CHECKED", "MAKEFLAGS", "MAKEOVERRIDES"}  # what a make that runs these tests hands on
MAKE = """#!/bin/sh
echo "make $*"
if [ "$1" = test-system ]; then
  mkdir -p "$LPSFED_SCREENSHOTS" && echo picture > "$LPSFED_SCREENSHOTS/page-390-dark.png"
fi
[ "$1" != "$FAILING" ]
"""


def run_ci(folder: Path, failing: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script in a clone in which nothing but `make` is asked, and one target of that fails."""
    clone, programs = folder / "clone", folder / "programs"
    (clone / ".ci").mkdir(parents=True, exist_ok=True)
    programs.mkdir()
    shutil.copy(ROOT / ".ci/run", clone / ".ci/run")
    shutil.copy(ROOT / ".env", clone / ".env")
    for name, text in {"make": MAKE, "docker": "#!/bin/sh\nexit 1\n", "apt-get": "#!/bin/sh\nexit 1\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    engine = {"LPSFED_CONTAINER_ENGINE": str(folder / "none"), "FAILING": failing}
    words = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"} | engine | environment
    words.pop("LPSFED_SCREENSHOTS", None)
    return subprocess.run(
        ["bash", str(clone / ".ci/run")], env=words, capture_output=True, text=True, timeout=LONGEST_SECONDS
    )


@pytest.mark.parametrize("failing", ["", "test-system", "site", "storage", "e2e-compose", "guard"])
def test_the_pictures_are_kept_after_a_run_that_fails_too(tmp_path: Path, failing: str) -> None:
    stale = tmp_path / "clone/build/artefacts/screenshots/of-an-earlier-run.png"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    done = run_ci(tmp_path, failing)
    assert (done.returncode == 0) == (failing == ""), done.stderr
    assert [path.name for path in stale.parent.iterdir()] == ["page-390-dark.png"]
    assert f"make {failing}" in done.stdout  # also of what runs beside the tests
    assert "1 pictures of the pages in " in done.stdout and str(stale.parent) in done.stdout


def test_a_ci_may_say_where_what_it_collects_lies(tmp_path: Path) -> None:
    run_ci(tmp_path, "test-system", LPSFED_ARTEFACTS=str(tmp_path / "collected"))
    assert (tmp_path / "collected/screenshots/page-390-dark.png").exists()


def test_a_run_that_ends_before_there_is_a_picture_says_so(tmp_path: Path) -> None:
    done = run_ci(tmp_path, "check")
    assert done.returncode != 0 and "0 pictures of the pages in " in done.stdout
    assert "make test" not in done.stdout


def test_what_a_run_leaves_out_of_the_tests_is_what_it_has_checked_before(tmp_path: Path) -> None:
    done = run_ci(tmp_path, "")
    assert done.stdout.index("make check") < done.stdout.index("make test CHECKED=1")
    outside = {name: value for name, value in os.environ.items() if name not in FROM_MAKE}
    plan = partial(subprocess.run, cwd=ROOT, env=outside, capture_output=True, text=True)
    planned = plan(["make", "-n", "check", "test", "CHECKED=1"])
    [checked, tested] = [line for line in planned.stdout.splitlines() if "bin/pytest" in line]
    assert re.findall(r"--ignore=(\S+)", tested) == re.findall(r"tests/\S+", checked) != []
    assert "--ignore" not in plan(["make", "-n", "test"]).stdout


def test_every_test_lies_in_a_level_and_each_level_is_run() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    named = {
        target: lines[lines.index(line) + 1] for line in lines for target in TARGETS if line.startswith(f"{target}: ")
    }
    levels = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert levels == {"unit", "service", "system"}
    assert {level for level in levels if f"tests/{level}" in named["test"] + named["test-system"]} == levels
    long = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.slow" in path.read_text(encoding="utf-8")]
    run = [ROOT / "tests" / level for level in ("service", "system") if f"tests/{level}" in named["faults"]]
    assert named["soak"].endswith("tests/system/soak") and '-m "slow and not containers"' in named["faults"]
    assert '-m "containers$(if $(ALL),, and not slow)"' in named["e2e-compose"]
    assert [str(path) for path in long if path != Path(__file__) and not {*path.parents} & {*run}] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w./-]+)(?![\w<./-])", text)
    names = re.findall(r"`(test_\w+\.py)\b", text)
    assert [one for one in named if not (ROOT / one).exists()] == []
    assert [one for one in names if not any((ROOT / "tests").rglob(one))] == []


SOURCES = {
    path.relative_to(ROOT).as_posix()
    for folder in ROOT.iterdir()
    if folder.name[0] != "."
    for path in folder.rglob("*.py")
}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    """The changelog tells of modules that were."""
    named = re.findall(r"`([\w/.-]+\.py)`", page.read_text(encoding="utf-8"))
    assert [one for one in named if not any(path == one or path.endswith(f"/{one}") for path in SOURCES)] == []


def test_each_target_that_tests_something_is_run_at_each_change_or_once_a_day() -> None:
    run, nightly = ((ROOT / f".ci/{name}").read_text(encoding="utf-8").split("make ") for name in ("run", "nightly"))
    each, daily = ({one.split()[0] for one in script[1:]} for script in (run, nightly))
    wanted = {"check", "test", "test-system", "generated-client", "engines", "site", "storage", "guard", "e2e-compose"}
    assert wanted <= each
    assert {"sbom", "audit", "platforms", "faults", "rounding", "notebook", "benchmark", "soak"} <= daily
    assert any("e2e-compose ALL=1" in one for one in nightly)  # and so all tests of containers


def test_a_failed_test_is_named_as_soon_as_it_has_failed() -> None:
    told: list[str] = []
    lines = FailureLines(SimpleNamespace(write_line=lambda text, **_: told.append(text)))
    for outcome, longrepr in (("passed", None), ("failed", "Traceback\nValueError: no fixture")):
        report = SimpleNamespace(failed=outcome == "failed", nodeid="test_a.py::test_b", when="setup")
        report.longrepr = report.longreprtext = longrepr
        lines.pytest_runtest_logreport(report)
    assert told == ["\nFAILED test_a.py::test_b (setup): ValueError: no fixture"]
