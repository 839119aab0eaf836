"""The wheel has every file that is read at run time, and no other; the command runs where the wheel is installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("aggregator_service", "audit", "client_service", "lpsfed", "shared", "simulation")
SITE = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
DATA = """
from pathlib import Path
from aggregator_service.pages import routes as operator
from aggregator_service.storage.database import MIGRATIONS
from audit.probes.expected import FOLDER as EXPECTED
from client_service.pages import routes as silo
from shared.web.pages import FOLDER as WEB
from simulation.deployment.files import TEMPLATES
folders = [MIGRATIONS, EXPECTED, WEB / "static", WEB / "templates", TEMPLATES]
print(*(path for folder in folders for path in folder.iterdir() if path.is_file()), sep="\\n")
print(operator.TEMPLATE.filename, silo.TEMPLATE.filename, sep="\\n")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` fills, with something in it from before."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "lpsfed-0.0.1-py3-none-any.whl").write_bytes(b"")
    script = [sys.executable, str(ROOT / "requirements/make_dist.py"), str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=True)
    assert [Path(line) for line in done.stdout.splitlines()] == sorted(folder.iterdir())
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [wheel] = dist.glob("*.whl")
    return wheel


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """An environment with this wheel and no other package."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv/bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-compile", str(wheel)], capture_output=True, timeout=300, check=True)
    return tmp_path / "venv"


def show_packages(installed: Path) -> None:
    """Let an environment see what is installed here, its own wheel before it; no other .pth file is read."""
    (installed / SITE / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")


def call(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment, outside the checkout."""
    command = [str(installed / "bin" / arguments[0]), *arguments[1:]]
    return subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=180)


def sources() -> set[str]:
    """Every file of the packages but those that an image is built by, and what Python has left."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in paths if path.name != "Dockerfile" and path.suffix != ".pyc"}


def test_a_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        found = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert len(found) > 300 and found == sources()


def test_the_source_archive_has_what_the_wheel_is_made_of(dist: Path) -> None:
    [archive] = dist.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        found = {member.name.partition("/")[2] for member in packed if member.isfile()}
    assert found >= sources() | {"pyproject.toml", "README.md", "LICENSE"}


def test_the_command_names_its_version_and_the_extra_that_it_needs(installed: Path) -> None:
    expected = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert call(installed, "lpsfed", "--version").stdout == f"lpsfed {expected}\n"
    refused = call(installed, "lpsfed", "demo")
    assert refused.returncode == 1 and 'pip install "lpsfed[simulation]" (no module named ' in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_what_the_services_read_lies_in_the_installed_package(installed: Path) -> None:
    show_packages(installed)
    found = call(installed, "python", "-c", DATA)
    paths = [Path(line) for line in found.stdout.splitlines()]
    assert len(paths) > 20 and all(path.is_relative_to(installed / SITE) and path.is_file() for path in paths)


def test_a_federation_s_compose_file_is_written_outside_the_checkout(installed: Path) -> None:
    show_packages(installed)
    done = call(installed, "lpsfed", "compose", "--silos", "2", "--out", "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    assert "client-2" in (installed / "docker-compose.yml").read_text(encoding="utf-8")
