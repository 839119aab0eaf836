"""Executes a notebook and writes its outputs; a failing cell ends with status 1."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELL_SECONDS = 600


def execute_notebook(source: Path, target: Path) -> None:
    """Executes the cells in the folder of `target`, and writes the notebook there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(source, as_version=4)
    place = {"metadata": {"path": str(target.parent)}}
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=place).execute()
    nbformat.write(notebook, target)


if __name__ == "__main__":
    execute_notebook(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
