"""What `lpsfed` does before it needs other packages: its version, its completion, and which extra is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import simulation
from simulation import command
from simulation.cli import app
from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
START = "import sys; sys.path.insert(0, {root!r}); from simulation.command import main; main()"


def without_packages(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `lpsfed` by a Python that sees the standard library and this checkout alone."""
    code = [sys.executable, "-I", "-S", "-c", START.format(root=str(ROOT)), *arguments]
    return subprocess.run(code, capture_output=True, text=True, timeout=LONGEST_SECONDS)


def test_the_version_is_one_line_with_the_name_and_the_version_of_the_package() -> None:
    for arguments in (["--version"], ["--version", "demo"]):
        found = CliRunner().invoke(app, arguments)
        assert (found.exit_code, found.stdout) == (0, f"lpsfed {version('lpsfed')}\n")


def test_the_version_needs_no_package() -> None:
    found = without_packages("--version")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("lpsfed") and found.stdout.count("\n") == 1


def test_a_checkout_that_is_not_installed_says_that_it_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(simulation, "version", refuse)
    assert simulation.version_line() == "lpsfed, not installed as a package: no version is known"


def test_a_missing_package_is_one_line_that_names_the_extra() -> None:
    found = without_packages("demo")
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == (
        'lpsfed: this command needs the extra "simulation": pip install "lpsfed[simulation]"'
        " (no module named 'typer')\n"
    )


def test_a_missing_module_of_our_own_is_a_fault_and_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lpsfed", "demo"])
    monkeypatch.setitem(sys.modules, "simulation.cli", None)
    with pytest.raises(ModuleNotFoundError, match=r"simulation\.cli"):
        command.main()


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    (tmp_path / "lpsfed").write_text(f"#!{sys.executable}\nfrom simulation.command import main\n\nmain()\n")
    (tmp_path / "lpsfed").chmod(0o755)
    asked = 'COMP_WORDS=({0}); COMP_CWORD={1}; _lpsfed_completion lpsfed; echo "${{COMPREPLY[@]}}"'
    lines = ['eval "$(lpsfed --show-completion bash)"', asked.format("lpsfed parti", 1)]
    lines.append(asked.format("lpsfed partition --meth", 2))
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    command_line = ["bash", "--norc", "-c", "\n".join(lines)]
    found = subprocess.run(command_line, env=environment, capture_output=True, text=True, timeout=180, check=True)
    assert found.stdout.split() == ["partition", "--method"]
