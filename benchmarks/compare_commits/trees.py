"""Files of a commit or of the working tree, and the commands that start there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

COMMAND = "lpsfed"  # the console script, as pyproject.toml names it
SINGLE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


@dataclass(frozen=True)
class Tree:
    """Folder with the files of a commit; `name`: for output."""

    name: str
    folder: Path

    @property
    def entry_point(self) -> str:
        """Entry point of the command line, MODULE:FUNCTION."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text("utf-8"))["project"]
        return str(project["scripts"][COMMAND])

    def process_environment(self) -> dict[str, str]:
        """Returns this environment with the tree's packages, one thread, and long lines."""
        pinned = dict.fromkeys(SINGLE_THREAD, "1")
        return os.environ | pinned | {"PYTHONPATH": str(self.folder), "COLUMNS": "9999"}

    def process_command(self, *arguments: str) -> list[str]:
        """Returns the command line as a process of this interpreter.

        It imports no module from the caller's folder.
        """
        module, _, function = self.entry_point.partition(":")
        return [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()", *arguments]


def commit_tree(repository: Path, commit: str, folder: Path) -> Tree:
    """Unpacks the files of a commit; raises CalledProcessError for an unknown commit."""
    git = ["git", "-C", str(repository)]
    named = subprocess.run([*git, "rev-parse", "--short", f"{commit}^{{commit}}"], check=True, capture_output=True)
    folder.mkdir(parents=True)
    with subprocess.Popen([*git, "archive", "--format=tar", commit], stdout=subprocess.PIPE) as archive:
        assert archive.stdout is not None
        with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
            files.extractall(folder, filter="data")
    return Tree(named.stdout.decode().strip(), folder)


def working_tree(repository: Path) -> Tree:
    """Returns the files as they are now."""
    return Tree("working tree", repository)
