"""The command `lpsfed`, as the package installs it: it answers `--version`, and says which extra is not installed."""

from __future__ import annotations

import sys

from simulation import NAME, version_line

OWN_PACKAGES = {"aggregator_service", "audit", "client_service", "lpsfed", "shared", "simulation"}


def main() -> None:
    """Entry point. It imports no other package before `--version` is answered, and none where one is missing."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(version_line() + "\n")
        return
    try:
        from simulation.cli import main as run

        run()
    except ModuleNotFoundError as error:  # of the command line, or of the command, which is imported when it is called
        sys.exit(_describe_missing(error))


def _describe_missing(error: ModuleNotFoundError) -> str:
    """One line for a package that an extra brings. A module of our own that is missing is a fault, and raised."""
    if (error.name or "").partition(".")[0] in OWN_PACKAGES:
        raise error
    reason = str(error)[:1].lower() + str(error)[1:]
    return f'{NAME}: this command needs the extra "simulation": pip install "lpsfed[simulation]" ({reason})'
