"""Container engine of this machine, controlled by docker commands, which are reported."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SettingsError, UnavailableError

TIMEOUT_SECONDS = 1800.0
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SHOWN = 500  # characters of what a command that failed has said
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """Engine that is controlled by docker commands.

    tell: receives every command that changes something, as it could be typed.
    """

    tell: Tell

    def read_output(self, *arguments: str) -> str:
        """Returns the output of a docker command, which is not reported."""
        return _run_command(("docker", *arguments), {}, (0,))[1]

    def run_command(
        self, *command: str, environment: Mapping[str, str] | None = None, exit_codes: Sequence[int] = (0,)
    ) -> tuple[int, str]:
        """Reports and runs a command, and returns exit code and output.

        Raises UnavailableError for an exit code other than `exit_codes`.
        """
        shown = {key: value for key, value in (environment or {}).items() if "\n" not in value}
        self.tell("$ " + shlex.join([*(f"{key}={value}" for key, value in shown.items()), *command]))
        return _run_command(command, environment or {}, exit_codes)


def require_engine() -> None:
    """Raises UnavailableError if no engine answers, SettingsError if docker is missing."""
    if shutil.which("docker") is None:
        raise SettingsError("expected docker on this machine, got no such command")
    _run_command(("docker", "version", "--format", "{{.Server.Version}}"), {}, (0,))


def compose_command() -> tuple[str, ...]:
    """Returns `docker compose` where it is installed, else docker-compose."""
    if subprocess.run(("docker", "compose", "version"), capture_output=True, check=False).returncode == 0:
        return ("docker", "compose")
    if shutil.which("docker-compose") is None:
        raise SettingsError("expected `docker compose` or docker-compose on this machine, got neither")
    return ("docker-compose",)


def _run_command(command: Sequence[str], environment: Mapping[str, str], codes: Sequence[int]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=Path.cwd().anchor,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode not in codes:
        output = COLOURS.sub("", (done.stderr or done.stdout).strip())[-SHOWN:]
        raise UnavailableError(f"{shlex.join(command[:4])} ...: expected success, got {done.returncode}: {output}")
    return done.returncode, COLOURS.sub("", done.stdout)
