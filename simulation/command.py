"""Entry point of the installed command `lpsfed`.

It answers `--version` without importing anything else, and names the missing extra of pip.
"""

from __future__ import annotations

import sys

from simulation import NAME, version_line

OWN_PACKAGES = {"aggregator_service", "audit", "client_service", "lpsfed", "shared", "simulation"}


def main() -> None:
    """Runs the command line.

    Imports no other package before `--version` is answered, so that it works where a dependency is missing.
    """
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(version_line() + "\n")
        return
    try:
        from simulation.cli import main as run

        run()
    except ModuleNotFoundError as error:  # of the command line, or of the command, which is imported when it is called
        sys.exit(_describe_missing(error))


def _describe_missing(error: ModuleNotFoundError) -> str:
    """Returns one line that names the extra which brings a missing package.

    Raises the error itself where the missing module is one of LPSFed's own.
    """
    if (error.name or "").partition(".")[0] in OWN_PACKAGES:
        raise error
    reason = str(error)[:1].lower() + str(error)[1:]
    return f'{NAME}: this command needs the extra "simulation": pip install "lpsfed[simulation]" ({reason})'
