"""Copies the repository's Markdown and the reference to the folder that mkdocs reads.

Pages lie in it as they lie in the repository, so that a link that leads somewhere here leads there on the site.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from notebook import notebook_page
from reference import reference_pages

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs/tutorial.ipynb"
EXECUTED = ROOT / "build/tutorial/tutorial.ipynb"
LINK = re.compile(r"\]\(([^)#: ]+)(?:#[^)]*)?\)")


def markdown_files() -> Iterator[Path]:
    """Yields every written page."""
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    for folder in ("docs", "benchmarks", "k8s"):
        yield from sorted((ROOT / folder).rglob("*.md"))


def linked_files(page: Path) -> Iterator[Path]:
    """Yields files other than pages that a page links to: pictures, notebooks, sources."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path.is_file() and path.suffix != ".md" and path.is_relative_to(ROOT):
            yield path


def stage_pages(place: Path) -> None:
    """Empties the folder and fills it with all pages."""
    shutil.rmtree(place, ignore_errors=True)
    for page in markdown_files():
        for path in (page, *linked_files(page)):
            _copy(path, place)
    for path in (ROOT / "docs/assets").iterdir():
        _copy(path, place)
    for name, text in reference_pages().items():
        _write(place / "docs/reference" / name, text)
    source = EXECUTED if EXECUTED.is_file() else TUTORIAL
    page, pictures = notebook_page(json.loads(source.read_text(encoding="utf-8")))
    _write(place / "docs/tutorial.md", page)
    for name, content in pictures.items():
        (place / "docs" / name).write_bytes(content)


def _copy(path: Path, place: Path) -> None:
    target = place / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_tables(place: Path) -> None:
    """Writes the full tables of the benchmarks from what is measured."""
    from benchmarks.fedga.tables import write_tables as write_session_tables
    from benchmarks.harness.document import write_document

    write_document(place / "docs")
    write_session_tables(place / "docs")


if __name__ == "__main__":
    SOURCE = Path(sys.argv[1]).resolve()
    stage_pages(SOURCE)
    write_tables(SOURCE)
